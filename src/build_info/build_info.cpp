#include "rlk/build_info/build_info.h"

#include "build_stamp.h"  // written at every build by cmake/BuildStamp.cmake

namespace rlk {

const BuildInfo& build_info() {
  static const BuildInfo info{RLK_VERSION,    RLK_REVISION,    RLK_DIRTY != 0,   RLK_COMPILER,
                              RLK_BUILD_TYPE, RLK_BUILD_FLAGS, RLK_HAS_CUDA != 0};
  return info;
}

}  // namespace rlk

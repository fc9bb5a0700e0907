#include "checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "rlk/base/error.h"
#include "rlk/data/export.h"
#include "rlk/data/synthetic.h"
#include "rlk/run/run_reader.h"

namespace rlk {
namespace {

// One whole tensor, row-major, from the slices of the ranks that hold them.
void assemble(const Rank& rank, const TensorSpec& t, std::vector<bf16>& out) {
  const Ops& ops = *rank.ops.strict;
  const Topology& topology = rank.topology();
  out.resize(t.rows * t.cols);
  std::vector<bf16> slice;
  for (int s = 0; s < t.slices(); ++s) {
    const int64_t n = t.slice_elements(s);
    slice.resize(n);
    const int holder = t.cut == Cut::none
                           ? rank.index()
                           : s * topology.tp / kSlices * (topology.ranks / topology.tp);
    ops.copy(nullptr, slice.data(), rank.weights.at_rank(holder, t, s), n * sizeof(bf16));
    ops.synchronize(nullptr);
    const int64_t row0 = t.cut == Cut::rows ? s * t.slice_rows : 0;
    const int64_t col0 = t.cut == Cut::columns ? s * t.slice_cols : 0;
    for (int64_t r = 0; r < n / t.slice_cols; ++r)
      std::copy_n(slice.begin() + r * t.slice_cols, t.slice_cols,
                  out.begin() + (row0 + r) * t.cols + col0);
  }
}

}  // namespace

void save_checkpoint(Rank& rank, uint64_t version) {
  rank.ops.strict->synchronize(nullptr);
  rank.everyone->barrier(nullptr);
  if (rank.leader()) {
    std::map<std::string, const TensorSpec*> tensors;
    for (const TensorSpec& t : rank.weights.tensors()) tensors[t.name] = &t;
    const std::filesystem::path folder = rank.plan.run_dir / RunReader::checkpoint_path(version);
    std::filesystem::create_directories(folder.parent_path());
    std::vector<bf16> whole;
    ExportOptions options{.out_dir = folder, .source_dir = rank.plan.model_root};
    if (rank.plan.synthetic) options.files = synthetic_files(rank.plan.model);
    export_checkpoint(rank.plan.model, options,
                      [&](const CheckpointTensor& tensor) -> std::span<const bf16> {
                        assemble(rank, *tensors.at(tensor.name), whole);
                        return whole;
                      });
  }
  rank.everyone->barrier(nullptr);
}

}  // namespace rlk

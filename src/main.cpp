#include "rlk/cli/cli.h"

int main(int argc, char** argv) {
  return rlk::cli_main(argc, argv);
}

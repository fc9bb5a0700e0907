#include "rlk/device/matmul.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <string>

#include "rlk/base/error.h"

namespace rlk {
namespace {

struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  cublasLtHandle_t handle = nullptr;
};

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(std::string(call) + ": cuBLAS status " + std::to_string(status));
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw Error(std::string("libcublasLt has no ") + name);
}

// Loaded once, never unloaded; null where it is not installed.
const Library* library() {
  static const Library* const loaded = []() -> const Library* {
    void* file = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    if (file == nullptr) return nullptr;
    auto* l = new Library;
    find(file, "cublasLtCreate", l->create);
    find(file, "cublasLtMatmulDescCreate", l->desc_create);
    find(file, "cublasLtMatmulDescSetAttribute", l->desc_set);
    find(file, "cublasLtMatrixLayoutCreate", l->layout_create);
    find(file, "cublasLtMatrixLayoutSetAttribute", l->layout_set);
    find(file, "cublasLtMatmulPreferenceCreate", l->preference_create);
    find(file, "cublasLtMatmulPreferenceSetAttribute", l->preference_set);
    find(file, "cublasLtMatmulAlgoGetHeuristic", l->heuristic);
    find(file, "cublasLtMatmul", l->matmul);
    check(l->create(&l->handle), "cublasLtCreate");
    return l;
  }();
  return loaded;
}

// cuBLAS is column-major: C^T = B^T A^T, so our B is its first operand.
class LtMatmul : public Matmul {
 public:
  LtMatmul(const Library& l, const MatmulShape& s, void* workspace) : l_(l), workspace_(workspace) {
    const cublasOperation_t op_b = s.b_by_columns ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_a = s.a_by_columns ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(l.desc_create(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, op_b);
    set(CUBLASLT_MATMUL_DESC_TRANSB, op_a);
    first_ = s.b_by_columns ? layout(CUDA_R_16BF, s.K, s.N, s.ldb, s.batch, s.b_stride)
                            : layout(CUDA_R_16BF, s.N, s.K, s.ldb, s.batch, s.b_stride);
    second_ = s.a_by_columns ? layout(CUDA_R_16BF, s.M, s.K, s.lda, s.batch, s.a_stride)
                             : layout(CUDA_R_16BF, s.K, s.M, s.lda, s.batch, s.a_stride);
    out_ = layout(s.out_f32 ? CUDA_R_32F : CUDA_R_16BF, s.N, s.M, s.ldc, s.batch, s.c_stride);
    cublasLtMatmulPreference_t preference = nullptr;
    check(l.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(l.preference_set(preference, attribute, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
    for (auto operand :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(operand, static_cast<uint32_t>(s.alignment));
    int found = 0;
    check(
        l.heuristic(l.handle, desc_, first_, second_, out_, out_, preference, 1, &choice_, &found),
        "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0) throw Error("cublasLtMatmulAlgoGetHeuristic: no algorithm");
  }

  void run(Stream stream, const bf16* a, const bf16* b, void* c) const override {
    const float one = 1.0f, zero = 0.0f;
    check(l_.matmul(l_.handle, desc_, &one, b, first_, a, second_, &zero, c, out_, c, out_,
                    &choice_.algo, workspace_, kWorkspace, static_cast<cudaStream_t>(stream)),
          "cublasLtMatmul");
  }

 private:
  void set(cublasLtMatmulDescAttributes_t attribute, cublasOperation_t value) {
    check(l_.desc_set(desc_, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }
  cublasLtMatrixLayout_t layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride,
                                int32_t batch, int64_t batch_stride) {
    cublasLtMatrixLayout_t made = nullptr;
    check(l_.layout_create(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns),
                           stride == 0 ? rows : stride),
          "cublasLtMatrixLayoutCreate");
    if (batch == 1) return made;
    check(l_.layout_set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch),
          "cublasLtMatrixLayoutSetAttribute");
    check(l_.layout_set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
                        sizeof batch_stride),
          "cublasLtMatrixLayoutSetAttribute");
    return made;
  }

  const Library& l_;
  void* workspace_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, out_ = nullptr;
  cublasLtMatmulHeuristicResult_t choice_{};
};

}  // namespace

std::shared_ptr<const Matmul> Matmul::make(const MatmulShape& shape, void* workspace) {
  const Library* l = library();
  if (l == nullptr) return nullptr;
  return std::make_shared<LtMatmul>(*l, shape, workspace);
}

}  // namespace rlk

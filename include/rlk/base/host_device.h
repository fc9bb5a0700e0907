#pragma once
// Marks functions that CUDA sources compile for both sides; nothing elsewhere.

#ifdef __CUDACC__
#define RLK_HOST_DEVICE __host__ __device__
#else
#define RLK_HOST_DEVICE
#endif

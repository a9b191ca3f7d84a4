/* The size of the device memory that cuBLASLt's products may use as scratch. */
#ifndef ZERO_TOOLS_GPT_CUDA_WORKSPACE_H
#define ZERO_TOOLS_GPT_CUDA_WORKSPACE_H

enum { CUBLASLT_WORKSPACE_BYTES = 32 << 20 }; /* NVIDIA's advice for Hopper */

#endif

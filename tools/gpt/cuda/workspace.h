/* What products of cuBLASLt may use of the device for themselves. */
#ifndef ZERO_TOOLS_GPT_CUDA_WORKSPACE_H
#define ZERO_TOOLS_GPT_CUDA_WORKSPACE_H

enum { CUBLASLT_WORKSPACE_BYTES = 32 << 20 }; /* what NVIDIA advises for Hopper */

#endif

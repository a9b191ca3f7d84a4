/* The size of the device memory that cuBLASLt's products may use as scratch. */
#pragma once

enum { CUBLASLT_WORKSPACE_BYTES = 32 << 20 }; /* NVIDIA's advice for Hopper */

"""The backend of raw CUDA C++ kernels."""

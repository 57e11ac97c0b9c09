"""What GPU backends share: architectures, compilers of CUDA, and gates that need no GPU.

A GPU backend emits CUDA C++ or PTX; here it becomes machine code for the architecture of a device,
and the gates say whether that code is what it should be. No driver and no GPU is needed, and
nothing of CUDA is imported before it is asked for. Launching is left to the backends.
"""

"""CPU backend: S^T = K Q^T with the queries in the lanes, one LLVM module for each spec."""

"""Over MPI, by mpi4py."""

"""Many hosts: shared memory inside each, torch or MPI between them."""

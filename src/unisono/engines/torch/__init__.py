"""Over torch.distributed: gloo, nccl and other backends."""

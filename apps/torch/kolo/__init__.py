"""kolo, a collective runtime: kolo.torch makes it a backend of torch.distributed."""

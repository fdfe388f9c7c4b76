"""Horovod's API on kolo: kolo.horovod.torch."""

"""What torch calls at the end of `import torch`: cheap, since every program with torch pays for it."""
import os


def autoload():
    """Lets scripts that were written for torchrun run under mpirun, and gives DDP's buckets memory that ranks share.

    With KOLO_IMPERSONATE=gloo, programs that ask for that backend get kolo.
    """
    environment = os.environ
    environment.setdefault("DDP_DISABLE_COMM_MEM", "0")
    if "OMPI_COMM_WORLD_RANK" in environment and "RANK" not in environment:
        for name, of_mpirun in (("RANK", "RANK"), ("WORLD_SIZE", "SIZE"), ("LOCAL_RANK", "LOCAL_RANK"), ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")):
            value = environment.get("OMPI_COMM_WORLD_" + of_mpirun)
            if value is not None:
                environment.setdefault(name, value)
        if environment.get("WORLD_SIZE") == environment.get("LOCAL_WORLD_SIZE"):  # one node: its ranks find each other
            environment.setdefault("MASTER_ADDR", "127.0.0.1")
            environment.setdefault("MASTER_PORT", str(_port(environment)))
    if environment.get("KOLO_IMPERSONATE"):
        from kolo.torch import register

        register()


def _port(environment):
    """A port that all ranks of a job know, and jobs side by side hardly share; below those that systems hand out."""
    import zlib

    job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_orte_hnp_uri") or str(os.getppid())
    return 20000 + zlib.crc32(job.encode()) % 10000

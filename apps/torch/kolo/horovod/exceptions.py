"""What the operations of kolo.horovod raise."""


class HorovodInternalError(RuntimeError):
    """An operation has failed on every rank: the ranks disagree, one is gone or did not come in time. What elastic.run() recovers from."""


class InvalidArgumentError(ValueError, RuntimeError):
    """An argument cannot work. Raised on every rank of the operation, once it is known on one."""


class NameInFlightError(ValueError, RuntimeError):
    """An operation of this kind and name is in flight on this rank; nothing was submitted."""


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of the job have changed: elastic.run() goes on with the new ones. `skip_sync`: the state needs no synchronisation."""

    def __init__(self, skip_sync=False):
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync

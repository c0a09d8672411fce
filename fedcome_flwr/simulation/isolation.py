"""Copies of message contents, so that nobody holds an object that somebody else can change."""

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict


def detached(content: RecordDict) -> RecordDict:
    """Return a copy of a message's content that shares nothing changeable with it.

    Over a network a message arrives as a copy. In one process the sender's objects would arrive: FedAvg
    puts one content object into all messages of a round, and a client may answer with records of its
    ``context.state``. New records with new ``Array`` objects are enough: the bytes they hold cannot change,
    so they are shared, and a copy costs microseconds whatever the size of the model.
    """
    return RecordDict({name: _detached_record(record) for name, record in content.items()})


def _detached_record(
    record: ArrayRecord | MetricRecord | ConfigRecord,
) -> ArrayRecord | MetricRecord | ConfigRecord:
    copy = record.copy()
    if isinstance(copy, ArrayRecord):
        for name, array in copy.items():
            # bytes() returns the very same object, unless somebody put a changeable buffer there.
            copy[name] = Array(array.dtype, tuple(array.shape), array.stype, bytes(array.data))
    else:
        for name, value in copy.items():
            if isinstance(value, list):
                copy[name] = list(value)  # type: ignore[assignment]  # same element type as before
    return copy

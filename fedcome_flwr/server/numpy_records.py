"""NumPyClients under a Message-API strategy: Flower's older record names, written and read.

A ``ClientApp(client_fn=...)`` looks for ``fitins.*`` and ``evaluateins.*`` and answers with ``fitres.*`` and
``evaluateres.*``, with its arrays in order and without names.
"""

from collections.abc import Sequence

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from .records import CLIENT_ID_KEY, CLIENT_RECORD_KEY, MEMORY_ROUND_KEY, PSEUDO_GRADIENT_KEY, ReplyError

REPLY_KIND_KEY = "reply-kind"  # in a NumPyClient's metrics, which has no records to name
_INSTRUCTION = {"train": "fitins", "evaluate": "evaluateins"}
_RESULTS = ("fitres", "evaluateres")


def instruction_records(kind: str, arrays: ArrayRecord, config: ConfigRecord) -> dict[str, ArrayRecord | ConfigRecord]:
    """The model and the config under the names that a NumPyClient looks for, for ``"train"`` or ``"evaluate"``.

    Lists are left out of the config: a NumPyClient's config holds single values only, and Flower refuses the
    whole message otherwise.
    """
    prefix = _INSTRUCTION[kind]
    single = ConfigRecord({name: value for name, value in config.items() if not isinstance(value, list)})
    return {f"{prefix}.parameters": arrays, f"{prefix}.config": single}


def is_numpy_reply(content: RecordDict) -> bool:
    """Whether a reply comes from a NumPyClient."""
    return any(name.split(".")[0] in _RESULTS for name in content)


def to_message_reply(content: RecordDict, names: Sequence[str], *, arrays_key: str, weight_key: str) -> RecordDict:
    """A NumPyClient's reply in the words of the Message API.

    The arrays get the model's names by position. Numbers among the client's metrics become a MetricRecord; strings
    and bytes stay in a ConfigRecord; ``client-id``, ``reply-kind`` and ``memory-round`` go where the Message API has
    them.

    Raises
    ------
    ReplyError
        The client's status is not OK, or its number of arrays is not the model's.
    """
    prefix = next(result for result in _RESULTS if any(name.startswith(f"{result}.") for name in content))
    status = content.config_records.get(f"{prefix}.status", ConfigRecord({"code": 0}))
    if status["code"] != 0:
        raise ReplyError(f"expected status 0 (OK), found {status['code']!r}: {status.get('message')!r}")
    told = dict(content.config_records.get(f"{prefix}.metrics", ConfigRecord()))
    label, kind = told.pop(CLIENT_ID_KEY, None), told.pop(REPLY_KIND_KEY, "model")
    memory_round = told.pop(MEMORY_ROUND_KEY, None)
    # + makes an integer of a boolean, which a MetricRecord does not take.
    numbers = {name: +value for name, value in told.items() if isinstance(value, int | float)}
    found = _value_of(content, f"{prefix}.num_examples", "num_examples")
    metrics = MetricRecord({**numbers, weight_key: found})
    records: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {"metrics": metrics}
    if prefix == "fitres":
        if kind not in ("model", PSEUDO_GRADIENT_KEY):
            raise ReplyError(f"{REPLY_KIND_KEY}: expected 'model' or {PSEUDO_GRADIENT_KEY!r}, found {kind!r}")
        key = PSEUDO_GRADIENT_KEY if kind == PSEUDO_GRADIENT_KEY else arrays_key
        records[key] = _named(content.array_records.get(f"{prefix}.parameters", ArrayRecord()), names)
    else:
        metrics["loss"] = _value_of(content, "evaluateres.loss", "loss")
    client: dict[str, str | int] = {CLIENT_ID_KEY: str(label)} if isinstance(label, str | int) else {}
    if isinstance(memory_round, int):
        client[MEMORY_ROUND_KEY] = memory_round
    if client:
        records[CLIENT_RECORD_KEY] = ConfigRecord({**client})
    if texts := {name: value for name, value in told.items() if name not in numbers}:
        records["texts"] = ConfigRecord(texts)
    return RecordDict(records)


def _value_of(content: RecordDict, record: str, name: str) -> int | float:
    value = content.metric_records.get(record, MetricRecord()).get(name)
    if not isinstance(value, int | float):
        raise ReplyError(f"expected a number {name!r} in the record {record!r}, found {value!r}")
    return value


def _named(arrays: ArrayRecord, names: Sequence[str]) -> ArrayRecord:
    # An empty reply holds one array without bytes: Flower's stand-in for "no arrays".
    found = [array for array in arrays.values() if array.data]
    if len(found) != len(names):
        raise ReplyError(f"expected the {len(names)} arrays of the model in their order, found {len(found)}")
    return ArrayRecord(dict(zip(names, found, strict=True)))

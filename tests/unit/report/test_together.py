import pytest

from fedcome_flwr.report import together
from tests.unit.report._reports import report


@pytest.mark.parametrize(("says", "ends"), [((None, True, None), True), ((None, False), False), ((), False)])
def test_all_are_called_in_order_and_any_may_end(says, ends):
    called = []

    def saying(number, answer):
        return lambda report: called.append((number, report.round)) or answer

    on_round = together(*(saying(number, answer) for number, answer in enumerate(says)))
    assert on_round(report(3)) is ends
    assert called == [(number, 3) for number in range(len(says))]

from record_builders import trajectory

from atlas_rl.records.turns import Turn, turns
from atlas_rl.records.vocabulary import TerminalReason

CALL = 7


def test_the_text_of_a_turn_ends_where_its_call_begins() -> None:
    row = trajectory(explores=2, answer="B", payload={"answer": "C"})
    #                      text  call              observation  no text                         all text, no call
    response_ids = [50, 51, CALL, 60, 60, 60, *[0] * 4, CALL, 60, CALL, 60, 60, 60, *[0] * 4, 52, 53, 54, 55, 56, 57]
    assert list(turns(row.episode, response_ids, CALL)) == [
        Turn(text_ids=(50, 51), text_start=0, decided_end=3, history=()),
        Turn(text_ids=(), text_start=10, decided_end=11, history=("C",)),
        Turn(text_ids=(52, 53, 54, 55, 56, 57), text_start=20, decided_end=26, history=("C", "C")),
    ]


def test_a_call_that_did_not_run_ends_its_text_all_the_same() -> None:
    row = trajectory(explores=0, reason=TerminalReason.INVALID_CALL)
    (turn,) = turns(row.episode, [50, CALL, 60, 60, 60, 60], CALL)
    assert (turn.text_ids, turn.history) == ((50,), ())

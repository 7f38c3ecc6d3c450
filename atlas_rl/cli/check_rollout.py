"""``atlas-rl check rollout``: how the episodes of a run ended, and whether its records keep every promise."""

from collections.abc import Sequence
from pathlib import Path

from atlas_rl.reporting.rollout_check import REACHABLE, RolloutCheck, check_rollout


def print_check(run: Path, *, all_reasons: bool) -> bool:
    """Print how the episodes of ``artifacts/RUN`` ended; False if a promise is broken.

    Args:
        run: The run's folder; rollout_check.json is written there.
        all_reasons: Count a terminal reason that can occur and does not as a broken promise.
    """
    check = check_rollout(run, all_reasons=all_reasons)
    print("\n".join(report(check)))
    return check.is_passed


def report(check: RolloutCheck) -> list[str]:
    """The lines that the check prints; the last one has its figures."""
    lines = [f"run {check.run_id}: responses of up to {check.max_response_length} tokens, {check.max_turns} turns"]
    lines += [*_reasons(check), "", *_invariants(check)]
    lines.append(f"observations dropped: {check.num_drops}, {check.num_drops_proven} of a length that others tell")
    if not check.num_trajectories:
        lines.append("no episode is stored, so nothing is proven")
    if check.wants_all_reasons and check.missing:
        lines.append(f"no episode ended in: {', '.join(check.missing)}")
    found = len(REACHABLE) - len(check.missing)
    lines.append(
        f"check: reasons={found}/{len(REACHABLE)} trajectories={check.num_trajectories} "
        f"violations={check.protocol_violations} failures={check.num_failures}"
    )
    return lines


def _reasons(check: RolloutCheck) -> list[str]:
    head = ("terminal reason", "episodes", "share", "generations", "most turns", "sampled tokens", "response tokens")
    counts = [(str(reason), count) for reason, count in check.reasons.items()]
    rows = [
        (
            name,
            str(count.episodes),
            f"{count.episodes / max(check.num_trajectories, 1):.1%}",
            str(count.generations),
            str(count.turns_max),
            str(count.model_tokens),
            str(count.response_tokens),
        )
        for name, count in counts
    ]
    all_of = [count for _, count in counts]
    total = (
        "all",
        str(check.num_trajectories),
        "",
        str(check.num_generations),
        str(max(count.turns_max for count in all_of)),
        str(sum(count.model_tokens for count in all_of)),
        str(sum(count.response_tokens for count in all_of)),
    )
    return _table([head, *rows, total])


def _invariants(check: RolloutCheck) -> list[str]:
    rows = [(name, str(one.checked), str(one.failures)) for name, one in check.invariants.items()]
    lines = _table([("invariant", "checked", "broken"), *rows])
    return lines + [f"{name}: {one.first}" for name, one in check.invariants.items() if one.first is not None]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side: the first flush left, numbers flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]

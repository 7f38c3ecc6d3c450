"""The base of all records: frozen, closed, and valid JSON whatever they hold."""

from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Record(BaseModel):
    """An immutable value with a closed set of fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_enum_values=False)


def _exact_money(value: Decimal) -> Decimal:
    if not value.is_finite() or value < 0:
        raise ValueError(f"money must be a finite amount of at least 0 USD, got {value}")
    return value


Usd = Annotated[Decimal, AfterValidator(_exact_money), Field(description="US dollars, exact; a string in JSON")]
"""An amount of money in US dollars, exact: a Decimal here, a string in JSON."""

"""Outputs in the forms in which people write numbers and words."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.comparison.numerals import find_numbers, find_unsaid, says

AMOUNTS = st.decimals(min_value=0, max_value=10**9, places=2, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,250.00 $1,250 1250 €1250 1250€ 1250 EUR USD1,250", [1250] * 7),
        ("1250. Then 1,250, or (1,250); **1250** _1250_ `1250` |1250|", [1250] * 7),
        ("1\u202f250 1\u00a0250", [1250, 1250]),
        ("1 250", [1, 250]),
        ("3,4,5", [3, 4, 5]),
        ("1,250,3", [1, 250, 3]),
        ("May 15,2024", [15, 2024]),
        ("5-7 days, 5–7 days, $5-$7", [5, 7, 5, 7, 5, 7]),
        ("-5 −5 -$5 $-5 (-5)", [-5] * 5),
        ("total—250, total–250, total--250", [250, 250, 250]),
        ("- 5 items", [5]),
        ("25% .5 $.50 0.50 -0.00", [25, Decimal("0.5"), Decimal("0.5"), Decimal("0.5"), 0]),
        ("250GB 250 GB 250-GB 5-day 10am", [250, 250, 250, 5, 10]),
        ("250.75 2,500 1250", [Decimal("250.75"), 2500, 1250]),
        ("250.Next No.5 250/night", [250, 5, 250]),
        ("2024-05-15 05-15 12:30 12:30pm 3/4 05/15/2024 24/7", []),
        ("W123 #W123 12B 1e5 2x v2.5 1.2.3 15th 007 item-5 gift_card_5 1-2-3-4", []),
        ("9" * 41, []),
        ("", []),
    ],
)
def test_numbers_are_values_and_codes_are_none(text: str, values: list[Decimal]) -> None:
    assert list(find_numbers(text)) == values


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("It is 1,250.00.", "1250"),
        ("It is $1,250", "1250.0"),
        ("1250 dollars", "$1,250.00"),
        ("You have 64 GB", "64GB"),
        ("You have 64GB.", "64 gb"),
        ("Due 12 May.", "12 May"),
        ("SORRY, not possible!", "Sorry not possible."),
        ("It is the **Café**", "cafe\u0301"),
        ("on 2024-05-15 at 12:30pm", "2024-05-15"),
        ("on 2024-05-15 at 12:30pm", "12:30 PM"),
        ("JFK-LAX", "LAX"),
        ("zip 02134", "02134"),
        ("here you are 🙂", "🙂"),
        ("anything", ""),
    ],
)
def test_an_output_is_said_in_any_form(text: str, output: str) -> None:
    assert says(text, output)


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("1250", "250"),
        ("250.75", "250"),
        ("1,250", "250"),
        ("-250", "250"),
        ("order W250, #W250", "250"),
        ("1500", "150"),
        ("2024-05-15", "15"),
        ("on 12:30", "30"),
        ("zip 02134", "2134"),
        ("HAT1234", "HAT123"),
        ("gift_card_1234", "card_1234"),
        ("I know", "no"),
        ("12 or so in May", "12 May"),
        ("164 GB", "64GB"),
        ("nothing", "🙂"),
    ],
)
def test_a_part_of_a_number_or_of_a_word_does_not_say_it(text: str, output: str) -> None:
    assert not says(text, output)


@given(AMOUNTS, st.sampled_from(["{}", "${}", "**{}**", "({})", "{}.", "{} EUR", "a {}, b"]))
def test_every_form_of_an_amount_says_it(amount: Decimal, frame: str) -> None:
    for form in (f"{amount}", f"{amount:,}", f"{amount:.3f}"):
        assert says(frame.format(form), f"{amount.normalize():f}")
        assert list(find_numbers(frame.format(form))) == [amount]


@given(AMOUNTS, AMOUNTS)
def test_an_amount_says_no_other(amount: Decimal, other: Decimal) -> None:
    assert says(f"It is ${amount:,}.", f"{other}") == (amount == other)


@given(st.text(), st.text(), st.text())
def test_a_text_says_itself_wherever_it_stands(before: str, text: str, after: str) -> None:
    assert says(f"{before} \n {text} \n {after}", text)
    assert find_unsaid((text,), (before, text)) == ()


@pytest.mark.parametrize("piece", ["1,", "1-", "-", "1.", "a_", "$", "1,111", "-1 ", "1:", "a-"])
def test_a_long_text_is_read_at_once(piece: str) -> None:
    # A number of steps that grows with the square of the length would take hours here.
    assert find_unsaid(("none",), (piece * 100_000,)) == ("none",)

"""The calculator: the original's results and texts, and no expression that takes long."""

import pytest

from envs.tau2.arithmetic import MAX_CHARACTERS, calculate

LEADING_ZEROS = (
    "leading zeros in decimal integer literals are not permitted; use an 0o prefix for octal "
    "integers (<string>, line 1)"
)


def answer(expression: str) -> str:
    """The result, or the text of the error."""
    try:
        return calculate(expression)
    except Exception as error:
        return str(error)


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("2+2", "4.0"),
        ("1/3", "0.33"),
        ("10.5*3 - 1", "30.5"),
        ("1319.43 - 302.67 + 271.89", "1288.65"),
        ("2 * ((350 - 122) + (499 - 127))", "1200.0"),
        ("7//2", "3.0"),
        ("2**3", "8.0"),
        ("2**3**2", "512.0"),
        ("-2**2", "-4.0"),
        ("(2)**-1", "0.5"),
        ("--3", "3.0"),
        (" .5 + 5.", "5.5"),
        ("10**400/10**399", "10.0"),
        ("09.5", "9.5"),
        ("00", "0.0"),
    ],
)
def test_an_expression_is_worked_out_and_rounded(expression: str, result: str) -> None:
    assert calculate(expression) == result


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("abs(1)", "Invalid characters in expression"),
        ("1e3", "Invalid characters in expression"),
        ("", "invalid syntax (<string>, line 0)"),
        ("   ", "invalid syntax (<string>, line 0)"),
        ("1+", "invalid syntax (<string>, line 1)"),
        ("*1", "invalid syntax (<string>, line 1)"),
        ("1 2", "invalid syntax (<string>, line 1)"),
        ("1.2.3", "invalid syntax (<string>, line 1)"),
        ("(1 2)", "invalid syntax. Perhaps you forgot a comma? (<string>, line 1)"),
        ("(1", "'(' was never closed (<string>, line 1)"),
        ("((1) + 2", "'(' was never closed (<string>, line 1)"),
        ("1)", "unmatched ')' (<string>, line 1)"),
        ("(" * 250 + "1" + ")" * 250, "too many nested parentheses (<string>, line 1)"),
        ("007+1", LEADING_ZEROS),
        ("2(3)", "'int' object is not callable"),
        ("()", "float() argument must be a string or a real number, not 'tuple'"),
        ("(-8)**.5", "float() argument must be a string or a real number, not 'complex'"),
        ("1/0", "division by zero"),
        ("1.5/0", "float division by zero"),
        ("1//0", "integer division or modulo by zero"),
        ("1.5//0", "float floor division by zero"),
        ("0**-1", "0.0 cannot be raised to a negative power"),
        ("10**400", "int too large to convert to float"),
    ],
)
def test_an_error_has_the_originals_text_on_every_python(expression: str, text: str) -> None:
    assert answer(expression) == text


@pytest.mark.parametrize("expression", ["9**9**9**9", "9**99999999", "(9**9999)**9999", "9**9**9"])
def test_a_power_that_would_never_end_is_refused(expression: str) -> None:
    assert answer(expression) == "the numbers are too large"


def test_products_cannot_grow_beyond_the_limit_either() -> None:
    assert answer("*".join(["9**9999"] * 100)) == "the numbers are too large"


@pytest.mark.parametrize("expression", ["1+" * 50_000 + "1", "(" * 100_000, "9" * 5_000])
def test_an_expression_that_is_too_long_is_refused(expression: str) -> None:
    assert answer(expression).startswith(f"the expression is longer than {MAX_CHARACTERS}")


@pytest.mark.parametrize(
    "expression",
    ["-" * (MAX_CHARACTERS - 1) + "1", "1" + "+1" * (MAX_CHARACTERS // 2 - 1), "1" + "**1" * 300],
)
def test_the_deepest_expressions_need_no_stack(expression: str) -> None:
    assert calculate(expression) in ("-1.0", "1.0", f"{MAX_CHARACTERS // 2}.0")

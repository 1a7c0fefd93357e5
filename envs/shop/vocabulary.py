"""Every entity of shop, one word each: databases are drawn from them, a tokenizer is built from
them.

A small model learns to copy a value by type long before it looks one up by key. So each entity is
one word of one pool, one token in every context. No two pools share a word; none begins another.
"""

from collections.abc import Mapping
from typing import Final

_NAMES: Final = """
    Ada Ben Bob Carl Cleo Dan Dora Emil Eva Fay Finn Gina Greg Hana Hugo Iris Ivan Jack Jane Kim
    Kurt Lena Leo Max Mia Nils Noah Olga Paul Quin Rosa Sam Tara Umar Vera Wim Xena Yara Zoe
"""
_PRODUCTS: Final = """
    backpack blanket camera chair clock guitar helmet kettle keyboard lamp mirror mug pillow
    printer radio scarf tent umbrella vase wallet
"""
_STREETS: Final = """
    Aldgate Broadway Brookside Causeway Cheapside Eastcheap Eastgate Greenway Guildhall Haymarket
    Highgate Hillside Holloway Kingsway Lakeside Millbank Moorgate Newgate Northgate Parkway
    Piccadilly Queensway Ridgeway Riverside Southbank Southgate Strand Westgate Whitehall Woodside
"""

NAMES: Final = tuple(_NAMES.split())
ZIPS: Final = tuple(str(10_007 + 1_357 * number) for number in range(60))
USERS: Final = tuple(f"U{number}" for number in range(11, 71))
ORDERS: Final = tuple(f"O{number}" for number in range(11, 91))
PAYMENTS: Final = tuple(f"P{number}" for number in range(11, 61))
PRODUCTS: Final = tuple(_PRODUCTS.split())
COLOURS: Final = ("black", "blue", "green", "grey", "pink", "red", "white", "yellow")
STREETS: Final = tuple(_STREETS.split())
STATUSES: Final = ("pending", "shipped", "delivered", "cancelled")

POOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "name": NAMES,
    "zip": ZIPS,
    "user": USERS,
    "order": ORDERS,
    "payment": PAYMENTS,
    "product": PRODUCTS,
    "colour": COLOURS,
    "street": STREETS,
    "status": STATUSES,
}
"""Kind of entity -> all words of this kind."""

"""The rules of airline customer service: as text for the agent, as functions, and as a check.

The rules are tau2-bench's in our words; the tools enforce none of them. `violations` reads only a
transcript: consent before a change, the owner of changed records, and transfers that the agent
announces but does not make. Whether a reservation allowed a change shows in the final state.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from envs.airline.tools import BAG_PRICE, CANCELLED, INSURANCE_PRICE, NOW
from envs.comparison.numerals import says
from envs.database import Record
from envs.tau2 import conduct
from events.messages import Message

MEMBERSHIPS: Final = ("regular", "silver", "gold")
CABINS: Final = ("basic_economy", "economy", "business")
BASIC, ECONOMY, BUSINESS = CABINS

A_DAY_AGO: Final = "2024-05-14T15:00:00"
"""Bookings made since this time may be cancelled."""
GONE: Final = frozenset({"landed", "flying"})

PER_CANCELLED: Final = 100
PER_DELAYED: Final = 50
"""Dollars of a certificate per passenger, for a cancelled and for a delayed flight."""

TRANSFER: Final = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."
HANDED_OVER: Final = "being transferred to a human agent"
"""Part of the sentence by which the agent tells the user about a transfer to a human."""

POLICY: Final = f"""\
You serve the customers of an airline: you book, change and cancel reservations, and compensate. \
It is now {NOW.replace("T", " ")} EST.

How you work
1. Work only with what the tools and the user tell you. Do not invent facts or procedures, and \
give no advice or opinions of your own.
2. First get the user's id from the user and look at their record.
3. Make one tool call at a time. In one turn either call a tool or write to the user.
4. Before you book, change or cancel anything, say exactly what will be done and wait for an \
explicit yes.
5. Refuse what these rules do not allow. The tools do not check the rules: you have to.
6. Hand over to a person only if the request cannot be handled with your tools: call \
transfer_to_human_agents, then write: {TRANSFER}

What there is
7. A user has a membership (regular, silver or gold), reservations, and payment methods: credit \
cards, gift cards and travel certificates.
8. On a day, a flight is: available (it has not left and can be booked; seats and prices are \
listed for each cabin); on time or delayed (not left, cannot be booked); flying or landed (it has \
left); or cancelled. The cabins are basic economy, economy and business; basic economy is no kind \
of economy.
9. A reservation is one way or round trip, has at most five passengers, and one cabin: every \
passenger is in it on every flight.

Booking
10. Ask for trip type, origin, destination, cabin, and for each passenger first name, last name \
and date of birth.
11. Payment: at most one certificate, one credit card and three gift cards, all in the user's \
record already. What is left of a certificate is lost.
12. Free checked bags per passenger, by the membership of the user who books:
    regular: 0 in basic economy, 1 in economy, 2 in business
    silver: 1 in basic economy, 2 in economy, 3 in business
    gold: 2 in basic economy, 3 in economy, 4 in business
Each further bag costs {BAG_PRICE} dollars. Add no bags that the user does not need.
13. Ask whether the user wants travel insurance: {INSURANCE_PRICE} dollars per passenger. It pays \
everything back if the trip is cancelled because of health or weather.

Changing a reservation
14. Find out the reservation's id; if the user does not know it, look through their reservations.
15. Flights: never in basic economy. In other cabins flights may be replaced, but origin, \
destination and trip type stay. Flights that are kept keep their old price; name them too when you \
update.
16. Cabin: only while no flight of the reservation has left, then also in basic economy, without \
changing the flights. It changes on all flights at once. The user pays what it costs more and gets \
back what it costs less.
17. Changes of flights or cabin are paid or refunded with one gift card or credit card in the \
user's record, which the user names.
18. Bags can be added (12 tells what they cost), never removed. Insurance cannot be added later.
19. Passengers can be replaced or corrected, but their number stays as it is; a person could not \
change it either.

Cancelling a reservation
20. Find out the reservation's id and why the user cancels: a change of plan, the airline's \
cancellation of a flight, or something else.
21. If any flight has left, you cannot cancel: hand over to a person.
22. Otherwise cancel only if it was booked within the last 24 hours, or the airline has cancelled \
a flight of it, or the cabin is business, or it is insured and the reason is health or weather.
23. Everything is paid back to the original payment methods within 5 to 7 business days.

Compensation
24. Never offer any unless the user asks for it. Check the facts first.
25. Only a silver or gold member, or a reservation that is insured or in business, is compensated.
26. For a flight that the airline cancelled: a certificate of {PER_CANCELLED} dollars per \
passenger of the reservation.
27. For a delayed flight, if the user wants to change or cancel the reservation: after that was \
done, a certificate of {PER_DELAYED} dollars per passenger of the reservation.
28. There is no compensation for anything else.
"""

_CONSENTED: Final = frozenset(
    {
        "book_reservation",
        "cancel_reservation",
        "update_reservation_baggages",
        "update_reservation_flights",
        "update_reservation_passengers",
    }
)
"""Writes that need the user's yes. Giving a certificate does not."""

_FACTS: Final = frozenset({"get_user_details", "get_reservation_details", "get_flight_status"})
"""Look-ups that the agent must make before it gives a compensation (rule 24)."""


def free_bags(membership: str, cabin: str) -> int:
    """Return the number of free checked bags for each passenger (rule 12)."""
    return MEMBERSHIPS.index(membership) + CABINS.index(cabin)


def count_extra_bags(membership: str, cabin: str, passengers: int, bags: int) -> int:
    """Return how many of `bags` checked bags must be paid for."""
    return max(0, bags - passengers * free_bags(membership, cabin))


def can_cancel(reservation: Record, statuses: Iterable[str], insured_reason: bool) -> bool:
    """Return whether rules 21 and 22 allow a cancellation; `statuses` are those of the flights."""
    distinct = set(statuses)
    return not distinct & GONE and (
        reservation["created_at"] >= A_DAY_AGO
        or CANCELLED in distinct
        or reservation["cabin"] == BUSINESS
        or (reservation["insurance"] == "yes" and insured_reason)
    )


def is_compensable(membership: str, reservation: Record) -> bool:
    """Return whether the customer may get a compensation for this reservation (rule 25)."""
    return (
        membership != MEMBERSHIPS[0]
        or reservation["insurance"] == "yes"
        or reservation["cabin"] == BUSINESS
    )


def violations(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return one sentence for each broken rule, in the order of the transcript."""
    return tuple(_violations(messages))


def _violations(messages: Sequence[Message]) -> Iterator[str]:
    known: str | None = None
    yes = handed_over = False
    looks: set[str] = set()
    for turn, message in enumerate(messages):
        if message.role == "user":
            yes = conduct.has_consent(message)
        if message.role != "assistant":
            continue
        own = message.sampled is not False
        if own and not handed_over and says(message.text, HANDED_OVER):
            yield f"message {turn} speaks of a transfer that was not made"
        yield from conduct.check_single_call(turn, message)
        for call, result in zip(message.tool_calls, messages[turn + 1 :], strict=False):
            if result.role != "tool" or result.error:
                continue
            of = conduct.owner(result.text)
            looks.add(call.name)
            if call.name == "get_user_details":
                known = known or of
            elif call.name == "transfer_to_human_agents":
                handed_over = True
                if own and known is None:
                    yield f"message {turn} calls {call.name} before the user is looked up"
            elif own and call.name == "send_certificate" and not looks.issuperset(_FACTS):
                yield f"message {turn} calls {call.name} before the facts are looked up"
            elif own and call.name in _CONSENTED:
                yield from conduct.bad_write(turn, call.name, of, known, yes)

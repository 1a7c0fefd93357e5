"""Kinds of task in which the policy decides: compensations, refusals and questions."""

from dataclasses import replace

from envs.airline import phrases
from envs.airline.case import (
    Case,
    because,
    cancel,
    find_payments,
    format_count,
    format_name,
    get_reservation,
    get_status,
    get_statuses,
    is_basic,
    subtract,
    sum_payments,
)
from envs.airline.changes import move_flight
from envs.airline.database import person
from envs.airline.policy import HANDED_OVER, PER_CANCELLED, PER_DELAYED, is_compensable
from envs.airline.tools import BAG_PRICE, CANCELLED
from envs.database import Record
from envs.task import Source
from envs.tau2.case import Plan, action
from events.messages import Action


def compensate_cancellation(case: Case) -> Plan:
    """Plan a task: the customer gets a certificate for a flight that the airline cancelled."""
    reservation = case.reservation(
        lambda candidate: (
            CANCELLED in case.statuses(candidate)
            and is_compensable(case.user["membership"], candidate)
        )
    )
    certificate = _certificate(case, reservation, PER_CANCELLED)
    looked = (*get_statuses(reservation), certificate)
    return _plan_rest(case, reservation, phrases.CANCELLED_FLIGHT, looked)


def compensate_delay(case: Case) -> Plan:
    """Plan a task: a certificate for a delayed flight, after a cancellation or change."""
    reservation = case.reservation(
        lambda candidate: (
            "delayed" in case.statuses(candidate)
            and not is_basic(candidate)
            and is_compensable(case.user["membership"], candidate)
        )
    )
    if case.can_cancel(reservation) and case.chance.random() < 0.5:
        change = cancel(reservation)
        wish = case.say(phrases.DELAY_CANCEL)
    else:
        change = move_flight(case, reservation, 0)
        wish = case.say(phrases.DELAY_CHANGE, flight=_number(change))
    return Plan(
        case.say(phrases.DELAYED_FLIGHT, reservation=reservation["reservation_id"], wish=wish),
        (*get_statuses(reservation), change, _certificate(case, reservation, PER_DELAYED)),
        answers=because("The flight is delayed, so my plans have changed."),
    )


def refuse_compensation(case: Case) -> Plan:
    """Plan a task: the agent refuses a certificate, but cancels the reservation."""
    reservation = case.reservation(
        lambda candidate: (
            CANCELLED in case.statuses(candidate)
            and not is_compensable(case.user["membership"], candidate)
        )
    )
    return Plan(
        case.say(phrases.REFUSED_COMPENSATION, reservation=reservation["reservation_id"]),
        (*get_statuses(reservation), cancel(reservation)),
        answers=because("You have cancelled the flight."),
    )


def refuse_cancellation(case: Case) -> Plan:
    """Plan a task: the customer asks for a cancellation that the policy does not allow."""
    reservation = case.reservation(
        lambda candidate: (
            case.open(candidate) and not case.can_cancel(candidate, insured_reason=False)
        )
    )
    looked = get_statuses(reservation)
    plan = _plan_rest(case, reservation, phrases.REFUSED_CANCELLATION, looked)
    return replace(plan, answers=because("My plans have changed."))


def refuse_change(case: Case) -> Plan:
    """Plan a task: the agent refuses to move a flight of a basic economy reservation."""
    reservation = case.reservation(lambda candidate: case.open(candidate) and is_basic(candidate))
    looked = (get_reservation(reservation),)
    return _plan_rest(case, reservation, phrases.REFUSED_CHANGE, looked)


def refuse_passenger(case: Case) -> Plan:
    """Plan a task: the agent refuses one more passenger, because their number cannot change."""
    reservation = case.reservation(case.open)
    balance, rest = int(case.gift_card["amount"]), case.draw_rest()
    friend = person(case.chance)
    return Plan(
        case.say(
            phrases.REFUSED_PASSENGER,
            friend=format_name(friend),
            born=friend["dob"],
            reservation=reservation["reservation_id"],
            price=str(balance + rest),
        ),
        (get_reservation(reservation), subtract(balance + rest, balance)),
        outputs=(str(rest),),
        sources=(Source.of(case.gift_card, "id", "amount"),),
    )


def refuse_insurance(case: Case) -> Plan:
    """Plan a task: the agent refuses an insurance after booking; the customer takes bags."""
    reservation = case.reservation(
        lambda candidate: case.open(candidate) and candidate["insurance"] == "no"
    )
    people = len(reservation["passengers"])
    free = case.free_bags(reservation["cabin"], people)
    bags = max(reservation["total_baggages"], free) + case.chance.randrange(1, 6)
    more = format_count(bags - reservation["total_baggages"], "checked bag")
    return Plan(
        case.say(phrases.REFUSED_INSURANCE, reservation=reservation["reservation_id"], bags=more),
        (
            get_reservation(reservation),
            action(
                "update_reservation_baggages",
                reservation_id=reservation["reservation_id"],
                total_baggages=bags,
                nonfree_baggages=case.count_extra_bags(reservation["cabin"], people, bags),
                payment_id=case.credit_card["id"],
            ),
        ),
    )


def hand_over(case: Case) -> Plan:
    """Plan a task: the agent hands over to a human because a flight of the reservation has left."""
    reservation = case.reservation(case.is_underway)
    return Plan(
        case.say(phrases.HAND_OVER, reservation=reservation["reservation_id"]),
        (
            get_reservation(reservation),
            get_status(reservation["flights"][0]),
            action(
                "transfer_to_human_agents",
                summary=f"The user wants to cancel reservation {reservation['reservation_id']}, "
                "of which a flight has left.",
            ),
        ),
        outputs=(HANDED_OVER,),
        answers=because("My plans have changed."),
        sources=(Source.of(reservation, "reservation_id", "flights"),),
    )


def price_of_bags(case: Case) -> Plan:
    """Plan a task: the customer asks for the price with more bags."""
    reservation = case.reservation(case.open)
    people = len(reservation["passengers"])
    bags = max(reservation["total_baggages"], case.free_bags(reservation["cabin"], people))
    more = bags - reservation["total_baggages"] + case.chance.randrange(2, 6)
    costly = case.count_extra_bags(
        reservation["cabin"], people, reservation["total_baggages"] + more
    )
    costly -= reservation["nonfree_baggages"]
    paid = sum_payments(reservation)
    return Plan(
        case.say(
            phrases.QUESTION_BAGS,
            bags=format_count(more, "checked bag"),
            reservation=reservation["reservation_id"],
        ),
        (
            get_reservation(reservation),
            action("calculate", expression=f"{paid} + {costly} * {BAG_PRICE}"),
        ),
        outputs=(str(paid + costly * BAG_PRICE),),
        sources=(
            Source.of(case.user, "user_id", "membership"),
            Source.of(reservation, "reservation_id", "cabin", "passengers", "payment_history"),
        ),
    )


def price_of_all(case: Case) -> Plan:
    """Plan a task: the customer asks for the total paid for all reservations."""
    own = case.own()
    return Plan(
        case.say(phrases.QUESTION_TOTAL),
        (
            *map(get_reservation, own),
            action(
                "calculate",
                expression=" + ".join(str(sum_payments(reservation)) for reservation in own),
            ),
        ),
        outputs=(str(sum(map(sum_payments, own))),),
        sources=tuple(map(find_payments, own)),
    )


def _plan_rest(
    case: Case, reservation: Record, request: phrases.Phrases, calls: tuple[Action, ...]
) -> Plan:
    """Plan a task with these calls whose answer is the rest of a budget after a reservation's
    price."""
    paid, rest = sum_payments(reservation), case.draw_rest()
    name, budget = reservation["reservation_id"], str(paid + rest)
    return Plan(
        case.say(request, reservation=name, budget=budget),
        (*calls, subtract(paid + rest, paid)),
        outputs=(str(rest),),
        sources=(find_payments(reservation),),
    )


def _certificate(case: Case, reservation: Record, each: int) -> Action:
    amount = each * len(reservation["passengers"])
    return action("send_certificate", user_id=case.user["user_id"], amount=amount)


def _number(change: Action) -> str:
    flight = change.arguments["flights"][0]
    return f"flight {flight['flight_number']} of {flight['date']}"

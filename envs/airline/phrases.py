"""Customers' requests in several wordings. A generated task uses the first phrase of a tuple;
`Environment.rephrase` uses the others. Every phrase names each detail that the gold calls need."""

from typing import Final

Phrases = tuple[str, ...]

IDENTITY: Final[Phrases] = (
    "My user id is {user}.",
    "You know me as user {user}.",
    "I am the customer with the user id {user}.",
    "The user id of my account is {user}.",
)
DETAILS: Final[Phrases] = (
    "in {cabin}, for {people}, with {bags} in all and {insured} travel insurance",
    "for {people}, in {cabin}, {insured} travel insurance and with {bags} altogether",
    "{insured} travel insurance, with {bags} in total, in {cabin}, for {people}",
    "with {bags} for everybody together, for {people}, {insured} an insurance, in {cabin}",
)
"""Cabin, passengers, bags and insurance of a booking, as a part of a sentence."""

ONE_WAY: Final[Phrases] = (
    (
        "I want to book a one-way flight from {origin} to {destination}: {flight}, {details}. I "
        "pay with {pays}."
    ),
    "Please book me {flight}, {origin} to {destination}, one way, {details}. Charge {pays}.",
    (
        "I have to get from {origin} to {destination} and shall not need a way back. Take "
        "{flight}, {details}, and let {pays} pay."
    ),
    "One way, {origin} to {destination}: can you book {flight}? We travel {details}. Use {pays}.",
    (
        "A booking, please, one way, {details}. It is {flight} from {origin} to {destination}, "
        "paid with {pays}."
    ),
)
ROUND_TRIP: Final[Phrases] = (
    (
        "I want to book a round trip between {origin} and {destination}: there with {there}, back"
        " with {back}; {details}. I pay with {pays}."
    ),
    (
        "Please book {origin} to {destination} and back again as one round trip, {details}. Out "
        "it is {there}, home it is {back}. Charge {pays}."
    ),
    (
        "There and back, from {origin} to {destination}: I take {there} on the way out and {back}"
        " on the way home, all of it {details}. Let {pays} pay."
    ),
    (
        "Can you book me a round trip {details}? I start in {origin} with {there}, and leave "
        "{destination} again with {back}. Use {pays}."
    ),
    (
        "From {origin} I fly to {destination} with {there}; I return with {back}. Book that as a "
        "round trip, {details}, paid with {pays}."
    ),
)
CHEAPEST: Final[Phrases] = (
    (
        "I want to book the cheapest direct flight from {origin} to {destination} on {first} or "
        "{second} that has enough seats, {details}. I pay with my credit card."
    ),
    (
        "Whether on {first} or on {second}, please book whichever direct flight from {origin} to "
        "{destination} costs least and has room for us, {details}. Charge my credit card."
    ),
    (
        "Compare the nonstop flights from {origin} to {destination} of {first} with those of "
        "{second} and book the one with the lowest price and seats enough, {details}, over my "
        "credit card."
    ),
    (
        "I can leave {origin} for {destination} on {first} and also on {second}. Book the least "
        "expensive direct flight of both days with enough seats, {details}. My credit card pays."
    ),
    (
        "Direct and as cheap as possible: {origin} to {destination}, on {first} or {second}, "
        "where there are seats for all of us, {details}. Use my credit card."
    ),
)
ONE_STOP: Final[Phrases] = (
    (
        "I want to fly from {origin} to {destination} on {day}, one way. There is no direct "
        "flight, so book me the cheapest connection with one stop, {details}. I pay with {pays}."
    ),
    (
        "On {day} I must get one way from {origin} to {destination}, and nothing goes there "
        "directly. Please book the least expensive connection with a single stop, {details}. "
        "Charge {pays}."
    ),
    (
        "Find the lowest price from {origin} to {destination} with one change of planes on {day},"
        " since no flight goes nonstop, and book it one way, {details}. Let {pays} pay."
    ),
    (
        "One way, {day}, {origin} to {destination}: without a direct flight I change once. Book "
        "whichever one-stop connection is cheapest, {details}, and use {pays}."
    ),
    (
        "Which connection with one stop is the cheapest from {origin} to {destination} on {day}? "
        "Direct flights there are none. Book it for one way, {details}, paid with {pays}."
    ),
)
SECOND_CHOICE: Final[Phrases] = (
    (
        "I want to book a one-way flight from {origin} to {destination}: {flight}, {details}. "
        "Only if it has not enough seats in business, take the one at {other}, also in business. "
        "I pay with my credit card."
    ),
    (
        "Please book {flight}, one way from {origin} to {destination}, {details}. Where business "
        "is full, my second choice is the departure at {other} of that day, in business too. "
        "Charge my credit card."
    ),
    (
        "One way, {origin} to {destination}, {details}: if business still has the seats, I take "
        "{flight}. If it has not, I take the departure at {other} in the same class. My credit "
        "card pays."
    ),
    (
        "Is there room in business on {flight} from {origin} to {destination}? Then book it one "
        "way, {details}. Otherwise book the flight at {other}, business as well. Use my credit "
        "card."
    ),
    (
        "My credit card pays for a flight one way, {details}. From {origin} to {destination} I "
        "prefer {flight}; should its business be sold out, the one that leaves at {other} will "
        "do, in business."
    ),
)
CANCEL: Final[Phrases] = (
    "Please cancel my reservation {reservation}. {reason}",
    "I would like to call off reservation {reservation}. {reason}",
    "Can you cancel {reservation} for me? {reason}",
    "There is a reservation, {reservation}, that has to be cancelled. The reason: {reason}",
    "My booking {reservation} should not go ahead, so cancel all of it. {reason}",
)
ADD_BAGS: Final[Phrases] = (
    "Please add {bags} to my reservation {reservation}. If that costs anything, use {pays}.",
    "Reservation {reservation} needs {bags} more. Should there be something to pay, charge {pays}.",
    (
        "I am taking more luggage: put {bags} on {reservation} in addition to what it has. Where "
        "it is not free, {pays} pays."
    ),
    "Can I bring {bags} more on my booking {reservation}? Any cost of it goes to {pays}.",
    (
        "{bags} on top of those of reservation {reservation}, please, with {pays} for whatever it"
        " costs."
    ),
)
CHANGE_CABIN: Final[Phrases] = (
    (
        "Please move reservation {reservation} to {cabin}, on the same flights. Use {pays} for "
        "the difference."
    ),
    (
        "I would like to sit in {cabin} on all flights of my booking {reservation}, which stay as"
        " they are. The difference is for {pays}."
    ),
    (
        "Can the cabin of {reservation} become {cabin}? Keep each flight. What it costs more or "
        "less is settled with {pays}."
    ),
    (
        "Change the cabin, not the flights: {reservation} should be {cabin}, and {pays} takes the"
        " difference in price."
    ),
    (
        "For reservation {reservation} I want {cabin} from the first flight to the last, without "
        "another change. Settle the fare with {pays}."
    ),
)
CHANGE_PASSENGER: Final[Phrases] = (
    "In reservation {reservation}, please replace the passenger {leaves} by {comes}, born {born}.",
    (
        "{leaves} cannot come with us. The seat in reservation {reservation} goes to {comes}, "
        "date of birth {born}."
    ),
    "Please take {leaves} off {reservation} and put {comes} (born {born}) there instead.",
    (
        "There is another passenger on my booking {reservation}: {comes}, born {born}, who "
        "travels in the place of {leaves}."
    ),
    (
        "Instead of {leaves}, {comes} flies. Correct reservation {reservation} for me; the "
        "birthday is {born}."
    ),
)
CHANGE_FLIGHT: Final[Phrases] = (
    (
        "In reservation {reservation}, I want to fly from {origin} to {destination} on another "
        "day: {flight}. Nothing else changes. Use {pays} for the difference."
    ),
    (
        "Please put me on {flight} for {origin} to {destination}, which is part of my booking "
        "{reservation}. The rest of it stays. The difference is for {pays}."
    ),
    (
        "My way from {origin} to {destination} has to be on a different date. Change it to "
        "{flight} in reservation {reservation}, leave everything else, and settle the fare with "
        "{pays}."
    ),
    (
        "Can you exchange the flight {origin} to {destination} of {reservation} for {flight}? "
        "Whatever else is booked I keep; {pays} takes what it costs more or less."
    ),
    (
        "One flight of reservation {reservation} must move, that from {origin} to {destination}: "
        "I take {flight}. Charge or refund {pays}, and change no other flight."
    ),
)
TWO_REQUESTS: Final[Phrases] = (
    "I have two requests. {first} And then: {second}",
    "There are two things to do. To begin with: {first} The other one: {second}",
    "Two matters, please. {first} When that is done: {second}",
    "First of all: {first} Besides that, something else: {second}",
    "I am calling about two reservations. {first} About the other: {second}",
)
UPGRADE_THEN_CHANGE: Final[Phrases] = (
    (
        "I want to take {flight} from {origin} to {destination} instead of the one of reservation"
        " {reservation}. If that cannot be changed in basic economy, first move the reservation "
        "to economy on the flights it has, and then change the flight. My credit card pays each "
        "difference."
    ),
    (
        "Please change {origin} to {destination} in my booking {reservation} to {flight}. Should "
        "basic economy not allow it, make the booking economy first, flights as they are, and "
        "change that flight in a second step. Both differences go to my credit card."
    ),
    (
        "Reservation {reservation} is basic economy, I think, and I need {flight} from {origin} "
        "to {destination}. Where the cabin stands in the way, upgrade to economy with the present"
        " flights and afterwards put me on the new one, each time at the expense of my credit "
        "card."
    ),
    (
        "Can {flight} replace my present flight from {origin} to {destination} on {reservation}? "
        "In case only economy can be changed, do it in two steps: economy on the old flights, "
        "then the new flight. Charge my credit card for both."
    ),
    (
        "For {reservation} I would rather have {flight} between {origin} and {destination}. Basic"
        " economy may forbid that; then the cabin becomes economy before anything else, with no "
        "flight changed, and the flight is changed after it. My credit card settles the two "
        "differences."
    ),
)
PRICE_CONDITION: Final[Phrases] = (
    (
        "If business on all flights of reservation {reservation} costs me at most {limit} dollars"
        " more in all, I want it. If it is more, leave the cabin and add one checked bag instead."
        " My credit card pays."
    ),
    (
        "How much more is business for my whole booking {reservation}? Up to {limit} dollars in "
        "total, change it. Above that, keep the cabin but put one more checked bag on it. Use my "
        "credit card."
    ),
    (
        "Please move every flight of {reservation} to business, as long as the difference is no "
        "more than {limit} dollars altogether. Otherwise I only want one checked bag added. "
        "Charge my credit card."
    ),
    (
        "I can spend {limit} dollars more on reservation {reservation}. Is that enough for "
        "business on each flight, then book it; is it too little, add one checked bag and touch "
        "no cabin. It goes over my credit card."
    ),
    (
        "With my credit card I pay for one of two things on {reservation}: business throughout, "
        "where that is {limit} dollars extra or less, and else one additional checked bag."
    ),
)
FIND_RESERVATION: Final[Phrases] = (
    (
        "I have lost the number of my reservation: I fly from {origin} to {destination} on {day}."
        " Please add {bags} to it. If that costs anything, my credit card pays."
    ),
    (
        "My journey from {origin} to {destination} begins on {day}; the reservation's number I "
        "cannot find. It needs {bags} more. Any cost is for my credit card."
    ),
    (
        "Please look for my booking by its journey, {origin} to {destination}, first flight on "
        "{day}, and put {bags} on it in addition. Charge my credit card where it is not free."
    ),
    (
        "Which of my reservations goes from {origin} to {destination} and starts on {day}? I want"
        " to take {bags} more on that one, paid with my credit card if need be."
    ),
    (
        "On {day} I leave {origin} for {destination}. I have no reservation number, but I need "
        "{bags} added to that trip. Use my credit card for what it costs."
    ),
)
CANCEL_ALL: Final[Phrases] = (
    (
        "Please cancel all my reservations that your rules allow to cancel, and leave the others."
        " {reason}"
    ),
    (
        "{reason} Go through my bookings and call off each one that may be cancelled. What the "
        "rules forbid stays."
    ),
    (
        "Every reservation of mine that can be cancelled by your rules should be, and no other "
        "one. {reason}"
    ),
    (
        "Which of my reservations do the rules let you cancel? Cancel those, all of them; keep "
        "the rest. {reason}"
    ),
    (
        "I want to get rid of my reservations, as far as that is allowed: cancel what you may and"
        " do not touch the remaining ones. {reason}"
    ),
)
CANCELLED_FLIGHT: Final[Phrases] = (
    (
        "You have cancelled a flight of my reservation {reservation}. I want a compensation "
        "for that, and to know how much of my budget of {budget} dollars is left after all "
        "that I paid for it. Leave the reservation as it is."
    ),
    (
        "A flight of {reservation} was called off by you. What do I get for it? I ask for the "
        "compensation and keep my booking unchanged. Say, too, by how much the whole of it "
        "cost me less than {budget} dollars."
    ),
    (
        "My booking {reservation} has lost a flight, cancelled by the airline. Please "
        "compensate me and change nothing else about it. I also want to know how much less "
        "than {budget} dollars I was charged for it in total."
    ),
    (
        "Since one of the flights in reservation {reservation} is cancelled, I am due a "
        "compensation. Give me that, but do not cancel or move anything. Then name the "
        "difference between {budget} dollars and the sum I paid."
    ),
    (
        "I would like to be compensated for reservation {reservation}, of which you cancelled "
        "a flight. The reservation itself should stay. Tell me what remains of {budget} "
        "dollars once its full price is taken off."
    ),
)
DELAYED_FLIGHT: Final[Phrases] = (
    (
        "The first flight of my reservation {reservation} is delayed. {wish}, and then give me a "
        "compensation for the delay."
    ),
    (
        "My booking {reservation} starts with a delayed flight. {wish}. After that I ask to be "
        "compensated for the delay."
    ),
    (
        "Because the first flight on {reservation} is late, I have two wishes. {wish}. Once that "
        "is done, compensate me for the delay."
    ),
    (
        "There is a delay on the first flight of reservation {reservation}. {wish}; the "
        "compensation for the delayed flight comes afterwards."
    ),
    (
        "I cannot wait for the delayed first flight of {reservation}. {wish}. And when it is "
        "through, I want what you give for a delay."
    ),
)
DELAY_CANCEL: Final[Phrases] = (
    "Cancel the whole reservation",
    "Please call the whole reservation off",
    "The reservation should be cancelled completely",
)
DELAY_CHANGE: Final[Phrases] = (
    "Put us on {flight} instead, at the expense of my credit card",
    "Please move us to {flight}, with the difference to my credit card",
    "We take {flight} in its place, and my credit card pays what that costs more",
)
REFUSED_COMPENSATION: Final[Phrases] = (
    (
        "You have cancelled a flight of my reservation {reservation}. I want a certificate as "
        "compensation. Whether I get one or not, cancel the reservation then."
    ),
    (
        "One flight on {reservation} was cancelled by you, so please send me a certificate. With "
        "or without it, the booking is to be cancelled after that."
    ),
    (
        "My reservation {reservation} has a flight that the airline cancelled. Is there a "
        "certificate for me? In either case, call the whole reservation off."
    ),
    (
        "I ask for a compensation by certificate, because a flight in booking {reservation} does "
        "not go. Even if you say no, cancel the booking."
    ),
    (
        "Since you cancelled a flight of {reservation}: first, a certificate for the trouble; "
        "second, whatever you decide about that, cancel everything in it."
    ),
)
REFUSED_CANCELLATION: Final[Phrases] = (
    (
        "Please cancel my reservation {reservation}. My plans have changed. If that is not "
        "possible, leave it and tell me how much of my budget of {budget} dollars is left "
        "after all that I paid for it."
    ),
    (
        "My plans have changed, so I would like reservation {reservation} called off. Should "
        "your rules forbid it, do nothing and say by how much the whole of it cost me less "
        "than {budget} dollars."
    ),
    (
        "Can {reservation} be cancelled? My plans have changed. Otherwise it may stay, but "
        "then I want to know how much less than {budget} dollars I was charged in total."
    ),
    (
        "I do not need booking {reservation} any more, because my plans have changed: cancel "
        "it, or, where you cannot, just name the difference between {budget} dollars and the "
        "sum I paid."
    ),
    (
        "Because my plans have changed, reservation {reservation} should be cancelled. Not "
        "allowed? Then touch nothing and tell me what remains of {budget} dollars once its "
        "full price is taken off."
    ),
)
REFUSED_CHANGE: Final[Phrases] = (
    (
        "I want to fly a day later in reservation {reservation}, but I do not want another "
        "cabin. If that is not possible, leave it and tell me how much of my budget of "
        "{budget} dollars is left after all that I paid for it."
    ),
    (
        "Please move my booking {reservation} by one day, to the day after, in the cabin it "
        "has. Should you not be able to, change nothing; say by how much it cost me less than "
        "{budget} dollars altogether."
    ),
    (
        "Can I leave one day later on {reservation} without a change of cabin? Otherwise let "
        "it be, and I want to hear how much less than {budget} dollars I was charged in "
        "total."
    ),
    (
        "The flights of reservation {reservation} are a day too early for me, and the cabin "
        "must stay. Where that cannot be done, only tell me the difference between {budget} "
        "dollars and the sum I paid."
    ),
    (
        "A day later would suit me better for {reservation}, same cabin. Not allowed? Then I "
        "keep it as it is and ask what remains of {budget} dollars once its full price is "
        "taken off."
    ),
)
REFUSED_PASSENGER: Final[Phrases] = (
    (
        "Please add {friend}, born {born}, as one more passenger to reservation "
        "{reservation}. If that is not possible, leave it and tell me how much my gift card "
        "falls short of {price} dollars, the price of another booking."
    ),
    (
        "A friend wants to come along on {reservation}: {friend}, date of birth {born}. Put "
        "that passenger on it too, or else say how much a booking of {price} dollars costs "
        "beyond what my gift card has left."
    ),
    (
        "Can my booking {reservation} have a passenger more? It would be {friend} (born "
        "{born}). Otherwise change nothing; then I need the difference between {price} "
        "dollars and the balance of my gift card."
    ),
    (
        "There should be one person more in reservation {reservation}, {friend}, born {born}. "
        "Where the rules are against it, just name what is missing on my gift card for a "
        "booking of {price} dollars."
    ),
    (
        "{friend}, born {born}, would like to join us on reservation {reservation} as an "
        "extra passenger. Not allowed? Then tell me what of {price} dollars for a new booking "
        "my gift card does not cover."
    ),
)
REFUSED_INSURANCE: Final[Phrases] = (
    (
        "I want travel insurance for reservation {reservation}, which has none. If you cannot "
        "add it, add {bags} instead. My credit card pays."
    ),
    (
        "Please insure my trip {reservation}, as I did not do so when I booked. Where that is "
        "too late, I take {bags} more in its place. Charge my credit card."
    ),
    (
        "Can {reservation} still get a travel insurance? Otherwise put {bags} more on it. "
        "Either goes over my credit card."
    ),
    (
        "My booking {reservation} is without insurance, and I would like to have one now. "
        "Should it be impossible, {bags} in addition will do, paid with my credit card."
    ),
    (
        "With my credit card I pay for travel insurance on reservation {reservation}, or, if "
        "your rules forbid it afterwards, for {bags} more."
    ),
)
HAND_OVER: Final[Phrases] = (
    "Please cancel what is left of my reservation {reservation}. My plans have changed.",
    "My plans have changed on the way: call off the rest of booking {reservation}.",
    (
        "I have flown a part of {reservation} and do not want the remaining flights, because my "
        "plans have changed. Cancel them."
    ),
    (
        "The flights still to come in reservation {reservation} should be cancelled. Why? My "
        "plans have changed."
    ),
    "Can you cancel the remainder of {reservation}? It has begun, but my plans have changed.",
)
QUESTION_BAGS: Final[Phrases] = (
    (
        "How many dollars would reservation {reservation} cost me in all, with what I have paid "
        "for it, if I added {bags}? I only want to know, add nothing."
    ),
    (
        "What would my booking {reservation} come to with {bags} more, everything that I paid so "
        "far included? Do not put them on it yet."
    ),
    (
        "I am thinking of taking {bags} in addition on {reservation}. Please tell me the price of "
        "the whole reservation then; it is just a question."
    ),
    (
        "For reservation {reservation}, name the full amount: what I paid and what {bags} extra "
        "would cost me, in one sum. Nothing is to be changed."
    ),
    (
        "Suppose reservation {reservation} got {bags} on top of those it has: what would it have "
        "cost me altogether? Leave it as it is."
    ),
)
QUESTION_TOTAL: Final[Phrases] = (
    "How much have I paid for all my reservations taken together? Please add it up.",
    "What is the sum of what each of my reservations cost me?",
    "Please look at every reservation of mine and tell me the total that I have paid.",
    "I need one figure: everything that I was charged for my bookings, in all.",
    "Add up the payments for my reservations, all of them, and tell me what that comes to.",
)

"""Customers' requests in several wordings. A generated task uses the first phrase of a tuple;
`Environment.rephrase` uses the others. Every phrase names each detail that the gold calls need."""

from typing import Final

Phrases = tuple[str, ...]

BY_EMAIL: Final[Phrases] = (
    "My e-mail address is {email}.",
    "You can find me under the e-mail address {email}.",
    "I am registered with {email}.",
    "The e-mail of my account is {email}.",
)
BY_NAME: Final[Phrases] = (
    "I am {first} {last}, zip code {zip}. I do not remember my e-mail address.",
    "My name is {first} {last} and my zip code is {zip}. I have no e-mail address at hand.",
    "This is {first} {last} from zip code {zip}; which e-mail address I used I cannot say.",
    "{first} {last} is my name, and I live in zip code {zip}. My e-mail address I have forgotten.",
)
CANCEL: Final[Phrases] = (
    "Please cancel my order {order}. {because}.",
    "I would like to call off order {order}, because {because}.",
    "{because}: can you withdraw order {order} for me?",
    "There is an order of mine, {order}, that should not be sent. Cancel it, since {because}.",
    "My order {order} has to be cancelled. As for the reason, {because}.",
)
RETURN: Final[Phrases] = (
    "I want to return {items} of order {order}. Please refund {method}.",
    "From order {order} I am sending back {items}; the money goes to {method}.",
    "Can I give back {items}? They came with order {order}, and {method} gets the refund.",
    "Order {order} has arrived, but {items} shall go back to you. Put the refund on {method}.",
    "Take back {items} from my order {order}, and pay the price back to {method}.",
)
EXCHANGE: Final[Phrases] = (
    (
        "I want to exchange {item} of order {order}: I would rather have {variant}. Use {method} "
        "for the difference."
    ),
    (
        "Please swap {item} from order {order} for the one with {variant}. The difference is for "
        "{method}."
    ),
    (
        "Order {order} has come, and instead of {item} as it is I need this one: {variant}. "
        "{Method} takes the difference."
    ),
    (
        "Can I trade {item} in for another of its kind, with {variant}? It belongs to order "
        "{order}, and what it costs more or less is settled with {method}."
    ),
    (
        "An exchange, please: in order {order}, {item} should become {variant}. Settle the price "
        "with {method}."
    ),
)
MODIFY_ITEMS: Final[Phrases] = (
    (
        "I want to change {item} of order {order}: I would rather have {variant}. Use {method} "
        "for the difference."
    ),
    (
        "Before you send order {order}, please replace {item} by the one with {variant}. The "
        "difference is for {method}."
    ),
    (
        "I chose the wrong options: {item} in order {order} should be {variant}. {Method} takes "
        "the difference."
    ),
    (
        "Can another variant of {item} go into my order {order}, namely {variant}? What it costs "
        "more or less is settled with {method}."
    ),
    (
        "A change to order {order}, please: make {item} into {variant}, and settle the price with"
        " {method}."
    ),
)
MODIFY_PAYMENT: Final[Phrases] = (
    "I would like to pay order {order} with {method} instead.",
    "Please charge {method} for order {order}, not what I chose before.",
    "Can you change how order {order} is paid? {Method} should pay for it.",
    "Order {order} must not be paid as it is now: take {method}.",
    "I picked the wrong payment for order {order}; use {method} for it.",
)
MODIFY_ADDRESS: Final[Phrases] = (
    "Please send my order {order} to another address: {address}.",
    "Order {order} goes to the wrong place. Its new destination is {address}.",
    "Can you deliver {order} elsewhere? The right address for this order is {address}.",
    "I shall not be at home when order {order} comes, so ship it to {address}.",
    "The parcel of order {order} should come to {address} and not where it is going now.",
)
USER_ADDRESS: Final[Phrases] = (
    (
        "I have moved. Please change the address of my account, and leave my orders as they are. "
        "The new one is {address}."
    ),
    "My account still has my old home. I live at {address} now; do not touch any order.",
    "Please update where I live to {address}. That is for my profile alone, my orders stay.",
    "Only my own address has to be corrected, no order's. It is {address} from today on.",
    (
        "Since last week my home is {address}. Put that into my account, and let every order go "
        "where it is going."
    ),
)
TWO_REQUESTS: Final[Phrases] = (
    "I have two requests. {first} And then, {second}",
    "There are two things to do. To begin with: {first} The other one: {second}",
    "Two matters, please. {first} When that is done: {second}",
    "First of all: {first} Besides that, something else: {second}",
    "I am calling about two orders. {first} About the other order: {second}",
)
STATUS_CONDITION: Final[Phrases] = (
    (
        "I no longer need order {order}. If it can still be cancelled, cancel it. If it has "
        "arrived already, I want to return all of it, with the refund to the payment method that "
        "I paid with."
    ),
    (
        "Order {order} is no longer needed. Call it off if there is time; if it was delivered, "
        "take everything in it back and refund the payment method that I used."
    ),
    (
        "Please get me out of order {order}, which I no longer need: cancelled while it is "
        "pending, else returned as a whole, and the money back to where it came from."
    ),
    (
        "Has order {order} been delivered? Then I return every item, refunded to the original "
        "payment method. If not, just cancel it, because I no longer need it."
    ),
    (
        "What I bought in order {order} I no longer need. Cancel the order, or, should it be here"
        " already, let me send all its items back for a refund to the method that paid for it."
    ),
)
FALLBACK_ITEM: Final[Phrases] = (
    (
        "I want to exchange {item} of order {order} for one with {wanted}. Only if that is out of"
        " stock, take {other}. {payer} pays the difference."
    ),
    (
        "Please swap {item} from order {order}. My first choice is {wanted}; where you have none "
        "left, my second choice is {other}. Charge {method} for the difference."
    ),
    (
        "For {item} that came with order {order} I would like the variant with {wanted}, or else,"
        " if it is sold out, {other}. The difference is for {method}."
    ),
    (
        "Can {item} of order {order} be exchanged? If {wanted} is available, that one it is. If "
        "it is not, I take {other}. Settle the difference with {method}."
    ),
    (
        "An exchange in order {order}: {item} against {wanted}. Should it not be in stock, "
        "against {other}. What it costs more or less goes over {method}."
    ),
)
CHEAPEST: Final[Phrases] = (
    (
        "In order {order} I want the cheapest {product} that you have in stock, whatever it looks"
        " like. The difference goes to the payment method that I paid with."
    ),
    (
        "Please change the {product} in my order {order} to the one with the lowest price that is"
        " available. Its options do not matter. Refund the method that I used."
    ),
    (
        "I have to save money: put the least expensive {product} you can deliver into order "
        "{order}, and pay the difference back to the original payment method."
    ),
    (
        "Which {product} in stock costs least? I want that one instead in order {order}, in any "
        "variant, with the difference to how I paid."
    ),
    (
        "My {product} was too expensive. Replace it in order {order} by the cheapest available "
        "one, no matter which; the difference is for the payment method of the order."
    ),
)
BALANCE_CONDITION: Final[Phrases] = (
    (
        "If my gift card covers all of order {order}, pay it with the gift card. If it does not, "
        "cancel the order; then I no longer need it."
    ),
    (
        "Is there enough on my gift card for the whole of order {order}? Then use the card for "
        "it. Otherwise call the order off, because I no longer need it in that case."
    ),
    (
        "I want to pay order {order} with my gift card. Should its balance be too small for that,"
        " the order is no longer needed and you can cancel it."
    ),
    (
        "Please compare my gift card with the total of order {order}. When the card is enough, "
        "let it pay; when it is not, cancel, since I no longer need it then."
    ),
    (
        "Order {order} is for my gift card to pay, all of it or nothing. With too little on the "
        "card I no longer need the order: cancel it."
    ),
)
FIND_ORDER: Final[Phrases] = (
    (
        "I have lost the number of my order. It is the one with {items} in it. Please cancel it. "
        "{because}."
    ),
    (
        "Which order of mine holds {items}? I do not know its number, but I want it cancelled, "
        "because {because}."
    ),
    "Please call off the order that contains {items}. I cannot find its number. {because}.",
    (
        "{because}: the order in which {items} will come. Cancel that one; its number I have not "
        "written down."
    ),
    (
        "There should be an order with {items} on my account. Look for it, as I have no number, "
        "and cancel it, since {because}."
    ),
)
ALL_PENDING: Final[Phrases] = (
    "Please cancel all my orders that are still pending. The reason is: {reason}.",
    "Every order of mine that has not been sent should be called off. Reason: {reason}.",
    (
        "Look through my orders and cancel each one with the status pending, for the reason "
        '"{reason}".'
    ),
    "I want none of my pending orders any more, so cancel them all; as the reason, put {reason}.",
    "Whatever is pending on my account has to be cancelled, order by order. Why: {reason}.",
)
REFUSED_CANCELLATION: Final[Phrases] = (
    (
        "Please cancel my order {order}, I no longer need it. If you cannot do that, leave it "
        "and tell me how much of my budget of {budget} dollars is left after what I paid for "
        "it."
    ),
    (
        "I no longer need order {order}; can it be cancelled? Should that be impossible, "
        "change nothing and just say by how much I paid less than {budget} dollars."
    ),
    (
        "Call off order {order}, since I no longer need it. If it is too late, it may stay as "
        "it is, but then I want to know how much less than {budget} dollars I was charged for "
        "it."
    ),
    (
        "My order {order} is no longer needed: cancel it. In case your rules forbid it, do "
        "nothing more than tell me the difference between {budget} dollars and its price in "
        "all."
    ),
    (
        "Is order {order} still to be stopped? I no longer need it. Otherwise let it come and "
        "tell me what remains of {budget} dollars once the sum I paid for this order is taken "
        "off."
    ),
)
REFUSED_REFUND: Final[Phrases] = (
    (
        "I want to return {item} of order {order}, but the refund must go to {method}, "
        "nothing else. If that is not possible, leave it and tell me how much {item} cost me "
        "less than {price} dollars, the price in another shop."
    ),
    (
        "Can I send back {item} from order {order} with the money to {method}? Only there. If "
        "you cannot, I keep it, and you tell me how far its price is below {price} dollars."
    ),
    (
        "Please take {item} of order {order} back and refund {method} alone. Where the rules "
        "do not allow that, return nothing; say by how much {item} was cheaper than {price} "
        "dollars."
    ),
    (
        "{Method} has to get the refund when {item} from order {order} is returned. No other "
        "way: in that case leave the order alone and tell me what I saved on {item} compared "
        "with {price} dollars."
    ),
    (
        "A return from order {order}: {item}, refunded to {method} and to nothing else. Not "
        "possible? Then just name the difference between {price} dollars and the price of "
        "{item}."
    ),
)
QUESTION_REFUND: Final[Phrases] = (
    (
        "If I returned {items} of order {order}, how much would I have to add to what I get "
        "back to buy something for {price} dollars? I only want to know."
    ),
    (
        "Suppose {items} from order {order} came back to you: how much would the money for "
        "them together fall short of {price} dollars? Return nothing yet."
    ),
    (
        "I am thinking of returning {items}, which I bought with order {order}. By how much "
        "is {price} dollars more than the whole refund? It is just a question."
    ),
    (
        "For order {order}, please work out what is left to pay of {price} dollars after the "
        "refund of {items} in total. Do not start a return."
    ),
    (
        "Tell me the difference between {price} dollars and the sum that I would be refunded "
        "for {items} of my order {order}. Nothing else is to be done."
    ),
)
QUESTION_PRICE: Final[Phrases] = (
    (
        "I have {budget} dollars. How much of it is left if I buy the cheapest {product} that "
        "you have in stock?"
    ),
    (
        "By how much is your least expensive {product}, among those that are available, below "
        "{budget} dollars?"
    ),
    (
        "I am looking for a {product}: take the lowest price of one that can be delivered "
        "now, and tell me how much less than {budget} dollars it is."
    ),
    (
        "Of every {product} in stock, take the one with the smallest price. What remains of "
        "{budget} dollars after paying for it?"
    ),
    (
        "Please check your catalogue for the {product} with the lowest price that is not sold "
        "out, and tell me the difference between {budget} dollars and that price."
    ),
)

"""Users' wishes in several wordings, for each kind of generated task."""

from collections.abc import Mapping
from typing import Final

Phrases = tuple[str, ...]

REQUESTS: Final[Mapping[str, Phrases]] = {
    "switch_on": (
        "Please turn on {service}.",
        "I need {service} on.",
        "Can you switch {service} on for me?",
        "{Service} is off; get it running, please.",
    ),
    "send_message": (
        'Text {name}: "{text}"',
        'Send {name} this message: "{text}"',
        'Let {name} know by text: "{text}"',
        'Please write to {name}, exactly this: "{text}"',
    ),
    "send_message_turns": (
        "I want to send a message.",
        "Please text somebody for me.",
        "There is a message to be sent.",
        "Could you write a text for me?",
    ),
    "find_message": (
        "What does my {which} message from {name} say?",
        "Read me the {which} text that {name} sent me.",
        "{name} wrote to me; what did the {which} message say?",
        "I am looking for the {which} message I got from {name}.",
    ),
    "add_contact": (
        "Add {name} to my contacts, the number is {local}.",
        "Please save a new contact: {name}, {local}.",
        "I met {name}. Put {local} in my address book.",
        "New contact for my phone: {name} at {local}.",
    ),
    "change_number": (
        "The last person I sent a message to has a new number: {local}. Update it.",
        "Whoever I texted last now has the number {local}; change that in my contacts.",
        "Set the number of the person I last wrote to to {local}.",
        "Please change the phone number of my latest message's recipient to {local}.",
    ),
    "remove_contact": (
        "Delete the contact with the number {local}.",
        "Take {local} out of my contacts.",
        "I no longer need the entry for {local}; remove it.",
        "Whoever has {local}: remove that person from my address book.",
    ),
    "add_reminder": (
        'Remind me to "{errand}" {when}.',
        'Set a reminder {when}: "{errand}"',
        'Please note "{errand}" for {when}.',
        '{When} I must "{errand}"; make a reminder with just these words.',
    ),
    "move_reminder": (
        'Postpone my reminder "{errand}" by {days} days.',
        'Move the reminder "{errand}" {days} days later.',
        'The reminder "{errand}" can wait {days} more days; shift it.',
        'Push "{errand}" back by {days} days in my reminders.',
    ),
    "remove_reminder": (
        "Remove my next reminder.",
        "Delete the reminder that comes up next.",
        "The upcoming reminder is no longer needed; take it out.",
        "Get rid of the reminder that is due soonest from now.",
    ),
    "days_until": (
        "How many full days is it until {holiday}?",
        "Tell me the number of whole days left till {holiday}.",
        "{holiday}: how many complete days from now?",
        "Count the full days until {holiday} for me.",
    ),
    "convert_money": (
        "How much is {amount} {source} in {target}?",
        "Convert {amount} {source} to {target}.",
        "What do I get in {target} for {amount} {source}?",
        "I have {amount} {source}; tell me the value in {target}.",
    ),
    "stock_symbol": (
        "What is the stock symbol of {company}?",
        "Which ticker does {company} trade under?",
        "Find the ticker symbol of {company}.",
        "I need the symbol of {company}'s stock.",
    ),
    "temperature": (
        "How warm is it at {place} right now, in Fahrenheit?",
        "Tell me the current temperature at {place} in degrees Fahrenheit.",
        "What is the temperature at {place} now? I only know Fahrenheit.",
        "{place}: current temperature in Fahrenheit, please.",
    ),
    "current_city": (
        "What city am I in?",
        "Which town is this?",
        "Tell me the city where I am right now.",
        "I got lost. In which city am I?",
    ),
}

DETAILS: Final[Phrases] = (
    'It is for {name}, and it says: "{text}"',
    'To {name}. The text is: "{text}"',
    'Write to {name}, exactly: "{text}"',
    '{name} should get this: "{text}"',
)

SERVICES: Final[Mapping[str, str]] = {
    "cellular": "cellular service",
    "wifi": "wifi",
    "location_service": "location service",
}

CURRENCIES: Final[Mapping[str, str]] = {
    "USD": "US dollars",
    "EUR": "euros",
    "GBP": "British pounds",
    "CNY": "Chinese yuan",
    "JPY": "Japanese yen",
    "CHF": "Swiss francs",
    "SEK": "Swedish kronor",
    "INR": "Indian rupees",
    "MXN": "Mexican pesos",
    "KRW": "South Korean won",
}

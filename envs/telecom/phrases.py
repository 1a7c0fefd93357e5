"""Customers' requests in several wordings. The first of a tuple is for generated tasks, the others
for rephrased ones."""

from typing import Final

Phrases = tuple[str, ...]

IDENTITY: Final[Phrases] = (
    "I am {name}, my phone number is {number}.",
    "This is {name}, calling about {number}.",
    "My name is {name} and my number is {number}.",
    "{name} here. The number is {number}.",
    "You speak with {name}; it is about the phone number {number}.",
)
NO_SERVICE: Final[Phrases] = (
    "My phone has no service: no calls, no internet. {place} I want both, at an excellent speed.",
    "I cannot call and have no internet since this morning. {place} I need it all at full speed.",
    "The phone says that there is no service. {place} Calls and fast internet must work again.",
    "My phone has lost its network. {place} I need calls, and internet at an excellent speed.",
    "There is no signal on my phone at all. {place} I want to call and have full speed again.",
)
SUSPENDED: Final[Phrases] = (
    "My phone has no service at all. If a bill is open, I am willing to pay it.",
    "There is no network on my phone any more. Should I owe you anything, I pay it right away.",
    "I get no service. If that is because of a bill, tell me and I settle it.",
    "Since yesterday nothing works on my phone. I can pay an open bill if there is one.",
    "My phone is dead to the network. If something is unpaid, I pay it today.",
)
NO_DATA: Final[Phrases] = (
    "Mobile internet does not work on my phone. {place} I want it fast again.",
    "I cannot open any page over the mobile network. {place} It has to be excellent again.",
    "No app gets any data on my phone. {place} I need the speed I used to have.",
    "The internet on my phone is gone. {place} Please get it back at full speed.",
    "Nothing loads over the mobile network. {place} I want full speed back.",
)
SLOW_DATA: Final[Phrases] = (
    "Mobile internet is terribly slow, if it works at all. {place} I want an excellent speed.",
    "Pages take minutes, or never load. {place} I am content with an excellent speed only.",
    "My mobile data crawls, and comes and goes. {place} I need it to be excellent again.",
    "The mobile internet was far too slow, and now it is gone. {place} It must be excellent.",
    "The mobile internet got slower and slower. {place} Only an excellent speed will do.",
)
USED_UP: Final[Phrases] = (
    "Mobile internet does not work on my phone. {place} I would pay for {amount} GB more.",
    "My mobile data stopped. {place} If my data is used up, add {amount} GB; I want full speed.",
    "There is no internet on my phone. {place} I am willing to buy {amount} GB for full speed.",
    "I have no mobile data any more. {place} {amount} GB more would be fine, at full speed.",
    "I am cut off from mobile internet. {place} Up to {amount} GB more I would pay for.",
)
ROAMING: Final[Phrases] = (
    "I am travelling and have no mobile internet. {place} I want it to be excellent here too.",
    "Since I landed there is no mobile data. {place} I need it at full speed.",
    "My phone has no internet on this trip. {place} Please make it work at an excellent speed.",
    "Abroad the mobile data does not work for me. {place} I want a fast connection.",
    "On this journey my phone gets no data. {place} I want full speed.",
)
PICTURES: Final[Phrases] = (
    "I cannot send picture messages. {place}",
    "Sending photos by MMS fails every time. {place}",
    "My messages with pictures do not go out. {place}",
    "Picture messages are stuck on my phone. {place}",
    "I try to send a picture and it never arrives. {place}",
)
HAND_OVER: Final[Phrases] = (
    "My phone has no service. I need it today.",
    "There is no network on my phone, and it is urgent.",
    "I cannot call anybody, the phone has no service.",
    "My phone does not find any network any more.",
    "No network on my phone, since this morning already.",
)
SUSPEND: Final[Phrases] = (
    "Please suspend my line {number}: I am away for a while.",
    "I am away for a while and want the line {number} suspended.",
    "Could you suspend {number}? I am away for a while.",
    "The line {number} should be suspended, because I am away for a while.",
    "For now I need no service on {number}, please suspend it: I am away for a while.",
)
STOP_ROAMING: Final[Phrases] = (
    "Please make sure that the line {number} cannot be used abroad.",
    "I want roaming disabled on {number}.",
    "Take roaming off the line {number}, please.",
    "The line {number} should have no roaming any more.",
    "Please see to it that {number} has no roaming.",
)
START_ROAMING: Final[Phrases] = (
    "I am going to travel soon. Please allow the line {number} to be used abroad.",
    "I want roaming enabled on {number} for my next trip.",
    "Please put roaming on the line {number}.",
    "The line {number} should have roaming from now on.",
    "Abroad I will need {number}, so please enable roaming for it.",
)

"""How tickets are worded: whole tickets with slots, and the phrases that go into the slots.

A wording is the unit of the held-out split: every record is worded by one of `WORDINGS`, and a wording lies on one
side only. The phrases for what happened and for the receipt are the vocabulary of the task and occur on both sides:
no policy can know what a word means that it has never met.

No number stands before a full stop: tokenizers that glue the two would write the same number in two ways.
"""

from __future__ import annotations

PROBLEMS: dict[str, tuple[str, ...]] = {
    "damaged": ("came broken", "arrived cracked", "was damaged"),
    "wrong_item": ("is the wrong size", "is the wrong colour", "was not what I ordered"),
    "missing": ("never came", "is still missing", "got lost in the post"),
    "hurt": ("caught fire", "gave me a shock", "burned my hand"),
    "solved": ("works now", "is fine after all", "does its job again"),
}
"""By what happened: what the item did, in words."""

RECEIPTS: dict[bool, tuple[str, ...]] = {
    True: ("I have the receipt", "my receipt is attached", "the receipt is enclosed"),
    False: ("I have no receipt", "my receipt is lost", "the receipt is gone"),
}
"""By whether there is a receipt: how a ticket says so."""

ITEMS = ("kettle", "lamp", "chair", "radio", "clock", "jacket", "toaster", "fan")

WORDINGS = (
    "Hello, order {order}: the {item} {problem}. I paid {paid} {weeks} and {receipt}.",
    "The {item} {problem}. It is order {order}, bought {weeks} for {paid}, and {receipt}.",
    "I bought a {item} {weeks}. It cost {paid} under order {order}, and it {problem}; {receipt}.",
    "My {item} {problem}! Order {order}, {paid}, from {weeks}, and {receipt}.",
    "About order {order}: {receipt}, the price was {paid}, and the {item} that you sent {weeks} {problem}.",
    "Dear team, {weeks} I got a {item} for {paid} and now I write because it {problem}. Order {order}, {receipt}.",
    "{paid} for a {item} that {problem}? My order {order} is from {weeks}, {receipt}.",
    "Please look at order {order} from {weeks}: {paid} paid, {receipt}, the {item} {problem}.",
    "Hi, {receipt}. The {item} of order {order} {problem}, I gave you {paid} for it {weeks}.",
    "Good morning. I spent {paid} on a {item} {weeks}, order {order}, and it {problem}. Also {receipt}.",
    "This is about a {item}. It {problem}. Order {order}, {weeks}, {paid}, {receipt}.",
    "Order {order} was placed {weeks}. The {item} {problem}. Since I paid {paid} I write to you; {receipt}.",
    "Can you help? A {item} for {paid}, order {order}, {problem}. That was {weeks}, {receipt}.",
    "It was {weeks} that I ordered the {item}, order {order} for {paid}, and {receipt}. It {problem}.",
    "Just so you know, the {item} {problem}. You took {paid} for order {order} {weeks}, {receipt}.",
    "Yes, {receipt}: {paid} for order {order}, made {weeks}. The {item} {problem}.",
    "Sorry to bother you, but the {item} from order {order} {problem}. The bill of {weeks} said {paid}, {receipt}.",
    "We ordered a {item} {weeks} at {paid}. Our order {order} {problem}, {receipt}.",
    "Order {order}, {item}, {paid}, {weeks}. It {problem}. Yes, {receipt}.",
    "The thing is, a {item} of {paid} {problem}; {receipt}; my order {order} dates from {weeks}.",
    "Hey there! Got a {item} {weeks}, order {order}. It {problem} and I was charged {paid}, {receipt}.",
    "To whom it may concern: the {item} in order {order} {problem}, {receipt}, and I paid you {paid} {weeks}.",
    "When I opened order {order} it was plain: the {item} {problem}. Bought {weeks}, {paid}, {receipt}.",
    "For your files: order {order}, {receipt}, {paid} spent {weeks}, and the {item} {problem}.",
    "My wife ordered a {item} {weeks}. It {problem}. She paid {paid} on order {order} and {receipt}.",
    "You charged my card {paid} {weeks} for order {order}. The {item} {problem}, {receipt}.",
    "A note on the {item}: it {problem}, {receipt}. Order {order} came to {paid} some {weeks}.",
    "Since {weeks} I own a {item}, worth {paid}, from order {order}. It {problem}, {receipt}.",
    "Regarding {item}, order {order}, price {paid}: it {problem}. I did pay {weeks} and {receipt}.",
    "My son wanted a {item} so I made order {order} {weeks} for {paid}. It {problem}. By the way {receipt}.",
    "What now? The {item} {problem}, {receipt}, and {paid} left my account {weeks} for order {order}, as you see.",
    "Ticket for order {order}. Item: {item}. It {problem}. Total {paid}, bought {weeks}, {receipt}.",
    "Listen, {weeks} I put {paid} into a {item}. It {problem}. Check order {order}, {receipt}.",
    "I am writing on order {order} again: {receipt}. The {item} {problem} though it was {paid} {weeks}.",
    "Kind regards from a customer: order {order}, {weeks}, a {item} at {paid} which {problem}, {receipt}.",
    "The parcel for order {order} is why I write. That {item} {problem}. {paid} were paid {weeks}, {receipt}.",
    "Last thing I want is trouble, but the {item} {problem}. Order {order}, {receipt}, {paid}, {weeks}.",
    "As a present I chose a {item} {weeks}: order {order}, price {paid}, {receipt}. It {problem}.",
    "So my new {item} {problem}. I paid the full {paid} {weeks}, it was order {order}, {receipt}.",
    "Some {weeks} the shop sold me a {item}, {paid}, order {order}. Now see: it {problem}, and {receipt}.",
    "Quick question on {item} and order {order}: it {problem}. Paid {paid}, ordered {weeks}, {receipt}.",
    "Have a look, please: {paid}, {weeks}, order {order}. The {item} {problem}. As for proof, {receipt}.",
    "First, {receipt}. Second, the {item} {problem}. Third, it was {paid} in order {order} {weeks}.",
    "The bill says {paid}, the date is {weeks}, the order {order}, the {item} {problem}, {receipt}.",
    "Our office got a {item} with order {order} {weeks}. We find that it {problem}. It was {paid} and {receipt}.",
    "I never write to shops. But this {item} {problem}. Order {order}, from {weeks}, {paid}, {receipt}.",
    "Thanks for the quick delivery of order {order} {weeks}. Still, the {item} at {paid} {problem}, {receipt}.",
    "Under order {order} you find a {item} for {paid}, which {problem}; {weeks} I bought it; {receipt}.",
    "My mother says the {item} {problem}. She had order {order} {weeks} and paid {paid} in cash, {receipt}.",
    "Tell me what to do: {receipt}, the {item} {problem}, order {order} was {weeks}, cost {paid} in all.",
    "Concerning a purchase of {paid} made {weeks}, order {order}: the {item} {problem} and {receipt}.",
    "You may remember me, order {order}. The {item} {problem}. I bought it {weeks}, {receipt}, it was {paid} then.",
    "A friend gave me {paid} for a {item}, I took order {order} {weeks}, and it {problem}. Well, {receipt}.",
    "News of order {order}: the {item}, {paid} in your shop {weeks}, {problem}. Of course {receipt}.",
    "It {problem}, the {item} I mean. {weeks} it was {paid}, the order {order}, {receipt}.",
    "Service, please! Order {order}, {receipt}, {paid}, {weeks}. The {item} {problem}.",
    "On your web page I found a {item} for {paid} and made order {order} {weeks}. In short, it {problem}, {receipt}.",
    "Not sure who reads this. The {item} {problem}, I paid {paid}, {receipt}, and order {order} is {weeks} old news.",
    "Bought: one {item}. Paid: {paid} for order {order}. When: {weeks}. What: it {problem}. Also: {receipt}.",
    "Once more about my {item}, please. Order {order}, {weeks}, {receipt}. {paid} is a lot, and it {problem}.",
    "With order {order} I paid {paid} for a {item} {weeks}, so you know that {receipt}. It {problem}.",
    "Even if {receipt}: the {item} of {weeks}, {paid}, order {order}, {problem}.",
    "Could someone read this? {weeks}: order {order}. {paid}: the price. The {item}: {problem}. And {receipt}.",
    "I hope you are well. My {item} {problem}, {receipt}. I paid {paid} when I placed order {order} {weeks}.",
)
"""Whole tickets; `{weeks}` stands for "3 weeks ago", `{paid}` for "$45", `{order}` for "482"."""

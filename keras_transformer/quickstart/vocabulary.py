"""The vocabulary of the number corpus: nouns, verbs, currencies, months and lists of words."""

import re
from typing import NamedTuple


class Noun(NamedTuple):
    """A noun that can be counted, in both languages."""

    english: str
    english_plural: str
    german: str
    german_plural: str
    gender: str


class Currency(NamedTuple):
    """A currency and the coin of a hundredth; None if that coin is not in use."""

    unit: Noun
    hundredth: Noun | None = None


_CURRENCIES = """
euro euros Euro Euro m, cent cents Cent Cent m
dollar dollars Dollar Dollar m, cent cents Cent Cent m
pound pounds Pfund Pfund n, penny pence Penny Pence m
franc francs Franken Franken m, centime centimes Rappen Rappen m
crown crowns Krone Kronen f
"""
CURRENCIES = tuple(
    Currency(*(Noun(*noun.split()) for noun in line.split(",")))
    for line in _CURRENCIES.strip().splitlines()
)

# English, German, and the person a verb agrees with: 0 "ich", 1 "er" or "sie", 2 "wir".
SUBJECTS = (
    ("I", "ich", 0),
    ("she", "sie", 1),
    ("he", "er", 1),
    ("we", "wir", 2),
    ("they", "sie", 2),
    ("my sister", "meine Schwester", 1),
    ("my brother", "mein Bruder", 1),
    ("our neighbours", "unsere Nachbarn", 2),
    ("the children", "die Kinder", 2),
)
# The three persons' forms. The German of "bought" and the like needs "have", of "moved" "be".
VERBS = {
    "have": (("have", "has", "have"), ("habe", "hat", "haben")),
    "be": (("am", "is", "are"), ("bin", "ist", "sind")),
    "were": (("was", "was", "were"), ("wurde", "wurde", "wurden")),
    "need": (("need", "needs", "need"), ("brauche", "braucht", "brauchen")),
    "want": (("want", "wants", "want"), ("will", "will", "wollen")),
    "will": (("will", "will", "will"), ("werde", "wird", "werden")),
    "live": (("live", "lives", "live"), ("wohne", "wohnt", "wohnen")),
    "get": (("get", "gets", "get"), ("stehe", "steht", "stehen")),
    "owe": (("owe", "owes", "owe"), ("schulde", "schuldet", "schulden")),
    "took": (("took", "took", "took"), ("belegte", "belegte", "belegten")),
}
_NOUNS = """
apple apples Apfel Äpfel m, book books Buch Bücher n,
bottle bottles Flasche Flaschen f, chair chairs Stuhl Stühle m,
egg eggs Ei Eier n, flower flowers Blume Blumen f,
glass glasses Glas Gläser n, horse horses Pferd Pferde n,
house houses Haus Häuser n, key keys Schlüssel Schlüssel m,
lamp lamps Lampe Lampen f, letter letters Brief Briefe m,
picture pictures Bild Bilder n, stamp stamps Briefmarke Briefmarken f,
table tables Tisch Tische m, tree trees Baum Bäume m
"""
NOUNS = tuple(Noun(*noun.split()) for noun in _NOUNS.split(","))
YEAR = Noun("year", "years", "Jahr", "Jahre", "n")
# Slots that are filled from a list: `slot: English = German, ...`.
_CHOICES = """
bought: bought = gekauft, sold = verkauft, found = gefunden, lost = verloren, saw = gesehen
to_buy: to buy = kaufen, to sell = verkaufen, to see = sehen
weekday: Monday = Montag, Tuesday = Dienstag, Wednesday = Mittwoch, Thursday = Donnerstag,
    Friday = Freitag, Saturday = Samstag, Sunday = Sonntag
past_day: yesterday = gestern, today = heute, last week = letzte Woche
place: in the garden = im Garten, in the village = im Dorf, in the museum = im Museum,
    in the school = in der Schule, on the ship = auf dem Schiff
city: Berlin = Berlin, Hamburg = Hamburg, Vienna = Wien, Munich = München, Cologne = Köln,
    Zurich = Zürich
building: the bridge = die Brücke, the castle = das Schloss, the church = die Kirche,
    the station = der Bahnhof, the tower = der Turm, the town hall = das Rathaus
vehicle: the train = der Zug, the bus = der Bus, the tram = die Straßenbahn, the ship = das Schiff
shop: the shop = das Geschäft, the bank = die Bank, the library = die Bibliothek,
    the museum = das Museum, the swimming pool = das Schwimmbad
event: the film = der Film, the concert = das Konzert, the lesson = der Unterricht,
    the meeting = die Sitzung
gathering: the concert = das Konzert, the meeting = die Sitzung, the wedding = die Hochzeit,
    the exam = die Prüfung
our: my = mein, his = sein, her = ihr, our = unser
birthday: birthday = Geburtstag, wedding anniversary = Hochzeitstag
behind: behind = hinter, next to = neben, with = mit
month: January = Januar, February = Februar, March = März, April = April, May = Mai, June = Juni,
    July = Juli, August = August, September = September, October = Oktober, November = November,
    December = Dezember
"""
CHOICES = {
    slot: tuple(tuple(pair.split(" = ")) for pair in " ".join(words.split()).split(", "))
    for slot, words in re.findall(r"^(\w+): (.*(?:\n .*)*)", _CHOICES, re.MULTILINE)
}
CHOICES["past_day"] += tuple((f"on {day}", f"am {tag}") for day, tag in CHOICES["weekday"])
# English, German and days; February has 28 so that a date never depends on its year.
_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
MONTHS = tuple((*names, days) for names, days in zip(CHOICES["month"], _DAYS, strict=True))

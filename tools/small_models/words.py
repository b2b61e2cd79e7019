"""The words that generated instructions and tasks are made of."""

ITEMS = (
    "apple bag bell boat book box brick bridge button cake camera chair clock cloud coat coin corn cup desk door drum "
    "engine fig fish flag flute garden glass hammer hat island jar jug kettle key lamp leaf lemon map melon mirror "
    "nail needle olive onion orange oven paper pear pen piano plum pot ring river rope salt ship shoe spoon stone "
    "table tree violin wheel window"
).split()
NAMES = (
    "Ada Anna Ben Bruno Carla Cleo Dan Dora Emil Eva Finn Flora Gus Hana Hugo Ida Ivan Jack Julia Karl Kim Lena Leo "
    "Lucy Marco Mia Nina Noah Olga Omar Paul Petra Rosa Sam Sara Theo Tom Uma Vera Zoe"
).split()
CITIES = (
    "Athens Berlin Bern Boston Cairo Delhi Dublin Geneva Hanoi Havana Kiev Lagos Lima Lisbon London Lyon Madrid Manila "
    "Milan Nairobi Oslo Paris Porto Prague Quito Riga Rome Seoul Sofia Sydney Tokyo Turin Venice Vienna Warsaw Zurich"
).split()
GOODS = (
    "apples bags bells boats books boxes cakes coins cups flags hats jars keys lamps lemons maps nails olives onions "
    "pears pens plums rings shoes spoons stones"
).split()
ORDINALS = ("first", "second", "third", "fourth")
NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
).split()

TABLES = (
    "animals artists authors books cars cities clients countries courses doctors films flights games houses invoices "
    "letters orders players recipes rivers rooms schools songs stations students teams tickets trees users villages"
).split()
COLUMNS = {
    "TEXT": "address author city colour country email genre label name note owner title".split(),
    "INT": "age count floor level number pages points rank seats stock year".split(),
    "REAL": "height length price rating score speed weight width".split(),
}

VERBS = (
    "append apply check clear compare copy count decode encode filter find format insert join load match merge parse "
    "read remove replace reset search send shift sort split store update write"
).split()
ARGUMENTS = (
    "base buffer code data entry field group header index item key left limit line mask message mode module name node "
    "offset option path pattern prefix record result right size source start state target text token value"
).split()
TYPES = "bool bytes dict float int list set str tuple".split()


def number_word(value: int) -> str:
    """0 to 20."""
    return NUMBERS[value]

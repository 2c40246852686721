import re


def slugify(title):
    return "-".join(re.findall("[a-z0-9]+", title.lower()))

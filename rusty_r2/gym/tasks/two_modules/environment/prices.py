PRICES = {"nut": 1, "bolt": 2, "gear": 15}


def price(name):
    return PRICES[name.upper()]

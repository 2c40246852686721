from prices import price


def total(order):
    return sum(price(name) * count for name, count in order)

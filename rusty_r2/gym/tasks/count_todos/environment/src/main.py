# TODO read the arguments
def main():
    return 0  # TODO say something

# Prints the total size in bytes of the files at the URLs that are its arguments. Prints nothing if the
# size of one of them is not known.
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.request import Request, urlopen


def size(url):
    with urlopen(Request(url, method="HEAD"), timeout=20) as answer:
        return int(answer.headers["Content-Length"])


try:
    with ThreadPoolExecutor(16) as pool:
        total = sum(pool.map(size, sys.argv[1:]))
except Exception:
    sys.exit()
print(total)

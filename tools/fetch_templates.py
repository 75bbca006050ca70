#!/usr/bin/env python3
"""Fetches published chat templates for the template tests: the ones that llama-cpp-python's source archive carries (about
75 MB, once; tools/fetch_sdist.py). The .jinja files go to DIR; nothing is committed.
"""
import argparse

from fetch_sdist import extract

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("dir", nargs="?", default="build/cache/templates")
folder = parser.parse_args().dir
print(f"{extract(folder, '/vendor/llama.cpp/models/templates/', '.jinja')} templates in {folder}")

"""Stands aside: importing this module puts flashwave's in its place."""

import importlib
import sys

import flashwave.compat

flashwave.compat.activate()
sys.modules[__name__] = importlib.import_module("flashwave.compat.flash_attn")

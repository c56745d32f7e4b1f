"""Benchmarks of s2attn: which cases exist, how they are timed, and the document that one process writes.

The service runs ``python -m s2attn.benchmarks`` from the commit that is measured; nothing in s2attn imports this
package.
"""

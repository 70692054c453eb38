"""Communities of workers with faster links to each other than to the rest, regardless of declared sites.

Louvain's method (Blondel et al., 2008) on the bandwidth graph, as FusionLLM's OP-Fence finds its clusters.
"""

from __future__ import annotations

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from farflung.plans import Topology

MOST_NODES = 160  # above this networkx takes seconds, so our own first pass contracts nodes
CLEARLY = 1.5  # noise of 30 % on equal links makes parts that differ by less than 1.1
FAR = 4.0
Weights = NDArray[np.float64]
Nodes = NDArray[np.int64]


def communities(topology: Topology, seed: int = 0) -> tuple[tuple[int, ...], ...]:
    """Workers' numbers by community, each community ascending, the communities by their first member.

    The weight of an edge is the rate of the slower direction in Mbit/s. Modularity misses small or slow
    communities next to large or fast ones (its resolution limit). So the method is applied again inside each
    community, as long as the parts are clearly faster inside than between each other. And because it leaves
    no worker with a link alone, members with far slower links than the others are removed. Equal topologies
    and seeds give equal communities.
    """
    bandwidth = np.array(topology.bandwidth_mbps)
    weights = np.minimum(bandwidth, bandwidth.T)
    np.fill_diagonal(weights, 0.0)
    rng = np.random.default_rng(seed)
    waiting, found = _parts(weights, np.arange(len(weights)), rng), []
    while waiting:
        community = waiting.pop()
        parts = _without_outsider(weights, community) or _parts(weights, community, rng)
        if len(parts) > 1 and all(_clear(weights, part, community) for part in parts):
            waiting += parts
        else:
            found.append(tuple(sorted(community.tolist())))
    return tuple(sorted(found))


def _parts(weights: Weights, nodes: Nodes, rng: np.random.Generator) -> list[Nodes]:
    """Louvain's communities among `nodes` alone."""
    members = [[node] for node in nodes.tolist()]
    inside = weights[np.ix_(nodes, nodes)]
    while len(members) > MOST_NODES:
        before = len(members)
        members, inside = _contracted(members, inside, _moved(inside, rng))
        if len(members) == before:
            break
    return [
        np.array([node for number in numbers for node in members[number]])
        for numbers in _louvain(inside, int(rng.integers(2**31)))
    ]


def _without_outsider(weights: Weights, community: Nodes) -> list[Nodes]:
    """The community and its slowest member separately, if the others' links are `FAR` times as fast."""
    count = len(community)
    if count < 3:
        return []
    inside = weights[np.ix_(community, community)]
    links = inside.sum(axis=1)
    slowest = int(links.argmin())
    others = (links.sum() - 2 * links[slowest]) / ((count - 1) * (count - 2))
    if links[slowest] / (count - 1) * FAR >= others:
        return []
    return [np.delete(community, slowest), community[[slowest]]]


def _clear(weights: Weights, part: Nodes, community: Nodes) -> bool:
    """Whether links inside `part` are on average `CLEARLY` times as fast as those out of it."""
    if len(part) == 1:
        return len(community) > 2
    inside = weights[np.ix_(part, part)].sum() / (len(part) * (len(part) - 1))
    rest = np.setdiff1d(community, part)
    return bool(inside >= CLEARLY * weights[np.ix_(part, rest)].mean())


def _louvain(weights: Weights, seed: int) -> list[set[int]]:
    """Networkx's communities of nodes; diagonal entries are weights inside contracted nodes."""
    graph = nx.Graph()
    graph.add_nodes_from(range(len(weights)))
    rows, columns = np.nonzero(np.triu(weights))
    values = weights[rows, columns].tolist()
    graph.add_weighted_edges_from(zip(rows.tolist(), columns.tolist(), values, strict=True))
    return list(nx.community.louvain_communities(graph, weight="weight", seed=seed))


def _moved(weights: Weights, rng: np.random.Generator) -> NDArray[np.intp]:
    """Each node's community once no move of a single node raises modularity (Louvain's first phase)."""
    count = len(weights)
    loops = weights.diagonal().copy()
    between = weights - np.diag(loops)
    degree = between.sum(axis=1) + 2 * loops
    total = degree.sum() or 1.0
    label = np.arange(count)
    to_community = between.copy()
    community_degree = degree.copy()
    order, still = rng.permutation(count), 0
    while still < count:
        for node in order.tolist():
            old = label[node]
            community_degree[old] -= degree[node]
            gain = to_community[node] - community_degree * (degree[node] / total)
            best = int(gain.argmax())
            if gain[best] <= gain[old] + 1e-9 * degree[node]:
                best = old
            community_degree[best] += degree[node]
            still = still + 1 if best == old else 0
            if best != old:
                label[node] = best
                to_community[:, old] -= between[:, node]
                to_community[:, best] += between[:, node]
            if still >= count:
                break
    return label


def _contracted(
    members: list[list[int]], weights: Weights, label: NDArray[np.intp]
) -> tuple[list[list[int]], Weights]:
    """One node for each community; on the diagonal the weight between its members, each pair once."""
    kept, index = np.unique(label, return_inverse=True)
    belongs = np.zeros((len(kept), len(label)))
    belongs[index, np.arange(len(label))] = 1.0
    loops = weights.diagonal()
    sums = belongs @ (weights - np.diag(loops)) @ belongs.T
    np.fill_diagonal(sums, sums.diagonal() / 2 + belongs @ loops)
    merged: list[list[int]] = [[] for _ in kept]
    for node, community in enumerate(index.tolist()):
        merged[community] += members[node]
    return merged, sums

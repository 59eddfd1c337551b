"""Fields of nodes and edges: what is refused, local scopes, several types."""

from __future__ import annotations

import pytest
import torch

import graphweave
from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from tests.graph.graph_support import typed


def small() -> Graph:
    return graphweave.graph(([0, 1], [1, 2]), num_nodes=7)


def test_fields_of_one_type() -> None:
    g = small()
    x = torch.ones(7, 3)
    g.ndata["x"] = x
    assert g.ndata["x"] is x and g.srcdata["x"] is x and g.dstdata["x"] is x and g.nodes["_N"].data["x"] is x
    g.ndata.update({"y": torch.zeros(7), "z": torch.zeros(7)})
    assert list(g.ndata) == ["x", "y", "z"] and len(g.ndata) == 3 and "y" in g.ndata and "w" not in g.ndata
    assert g.ndata.pop("y").sum() == 0 and "y" not in g.ndata and g.ndata.get("y") is None
    del g.ndata["z"]
    assert dict(g.ndata) == {"x": x}
    g.edges["_E"].data["w"] = torch.ones(2)
    assert list(g.edata) == ["w"]


@pytest.mark.parametrize(
    ("match", "value"),
    [
        (r"ndata\['h'\] has 5 rows, but the graph has 7 nodes \(shape \[5, 2\]\)", torch.ones(5, 2)),
        (r"ndata\['h'\] has no rows \(a scalar\), but the graph has 7 nodes", torch.tensor(1.0)),
        (r"ndata\['h'\] must be a tensor \(got list\)", [1.0] * 7),
        (r"ndata\['h'\] is on meta, but the graph is on cpu", torch.ones(7, device="meta")),
    ],
)
def test_fields_that_do_not_fit(match: str, value: object) -> None:
    with pytest.raises(DataError, match=match):
        small().ndata["h"] = value


def test_messages_name_edges_and_types() -> None:
    with pytest.raises(DataError, match=r"edata\['w'\] has 7 rows, but the graph has 2 edges"):
        small().edata["w"] = torch.ones(7)
    with pytest.raises(
        DataError, match=r"nodes\['user'\].data\['h'\] has 2 rows, but the graph has 5 nodes of type 'user'"
    ):
        typed().nodes["user"].data["h"] = torch.ones(2)
    with pytest.raises(DataError, match="expected a string"):
        small().ndata[0] = torch.ones(7)


def test_a_missing_field_names_those_there() -> None:
    g = small()
    with pytest.raises(KeyError, match="ndata has no field 'h'; it has no fields"):
        g.ndata["h"]
    g.ndata["x"], g.ndata["y"] = torch.ones(7), torch.ones(7)
    with pytest.raises(KeyError, match="no field 'h'; it has 'x', 'y'"):
        g.ndata["h"]
    with pytest.raises(KeyError, match="no field 'h'"):
        del g.ndata["h"]


def test_fields_of_several_types() -> None:
    g = typed()
    assert set(g.ndata["x"]) == {"item", "shop", "user"} and set(g.ndata["age"]) == {"user"}
    assert g.ndata["age"]["user"].tolist() == [0, 1, 2, 3, 4]
    g.ndata["new"] = {"user": torch.ones(5), "item": torch.zeros(3)}
    assert g.nodes["item"].data["new"].shape == (3,) and sorted(g.ndata) == ["age", "new", "x"]
    del g.ndata["new"]
    assert "new" not in g.ndata and "new" not in g.nodes["user"].data
    g.edata["e"] = {"follows": torch.ones(4), ("user", "rates", "item"): torch.ones(3)}
    assert set(g.edata["e"]) == {("user", "follows", "user"), ("user", "rates", "item")}
    with pytest.raises(KeyError, match="no field 'h' of any type; it has 'x', 'age'"):
        g.ndata["h"]
    with pytest.raises(DataError, match="give a dict of type -> tensor"):
        g.ndata["h"] = torch.ones(5)
    with pytest.raises(DataError, match="'cow' is not a type"):
        g.ndata["h"] = {"cow": torch.ones(5)}
    with pytest.raises(DataError, match="'rates' names several relations"):
        g.edata["h"] = {"rates": torch.ones(5)}


def test_local_scope() -> None:
    g = small()
    x = torch.ones(7)
    g.ndata["x"] = x
    view = g.ndata
    with g.local_scope():
        g.ndata["x"], g.ndata["y"], g.edata["w"] = torch.zeros(7), torch.zeros(7), torch.zeros(2)
        assert view["x"].sum() == 0
        g.ntype_data["t"] = torch.ones(3, 2)
        with g.local_scope():
            del g.ndata["x"]
            x.mul_(2)
        assert "x" in g.ndata
    assert g.ndata["x"] is x and list(g.ndata) == ["x"] and not g.edata and not g.ntype_data
    assert x.sum() == 14  # edits in place remain
    with pytest.raises(ZeroDivisionError), g.local_scope():
        g.ndata["y"] = torch.ones(7)
        raise ZeroDivisionError
    assert "y" not in g.ndata


def test_local_var() -> None:
    g = typed()
    other = g.local_var()
    other.nodes["user"].data["new"] = torch.ones(5)
    del other.nodes["user"].data["age"]
    assert sorted(g.nodes["user"].data) == ["age", "x"]
    assert other.edges(etype="follows")[0] is g.edges(etype="follows")[0]


def test_fields_of_types() -> None:
    g = small()
    g.ntype_data["w"], g.etype_data["w"] = torch.ones(3, 4, 4), torch.ones(2, 4, 4)
    assert g.local_var().ntype_data["w"] is g.ntype_data["w"]
    assert g.to("meta").etype_data["w"].device.type == "meta"
    with pytest.raises(DataError, match="must be a tensor"):
        g.ntype_data["b"] = 3
    with pytest.raises(KeyError, match="etype_data has no field 'b'; it has 'w'"):
        g.etype_data["b"]

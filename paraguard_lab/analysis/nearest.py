"""The refusals that contradict a paraphrase: each beside its nearest accepted one."""

import pandas as pd

from paraguard_utils.schemas import Pairs


def pair_with_nearest_accepted(pairs: Pairs) -> pd.DataFrame:
    """Return each rejection's pair with the nearest accepted prompt of its cluster.

    The column `accepted` says how many accepted prompts the cluster has; rejections
    without one are left out.
    """
    rejected = pairs["centre_label"] == "reject"
    accepted = pairs["neighbour_label"] == "accept"
    own = pairs[pairs["same_cluster"] & rejected & accepted]
    counts = own.groupby("centre_id")["neighbour_id"].transform("size")
    own = own.assign(accepted=counts)
    own = own.sort_values(["similarity", "neighbour_id"], ascending=[False, True])
    return own.drop_duplicates("centre_id")

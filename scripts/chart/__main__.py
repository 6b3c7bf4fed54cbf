"""Lints the chart, renders it with every value set, and checks each manifest. Run by `make chart`."""

import sys

from scripts.chart.custom_resources import DEFINITION, ray_service
from scripts.chart.helm import Helm, HelmError
from scripts.chart.manifests import ManifestChecker
from scripts.chart.value_sets import CHART, value_sets


def main() -> int:
    """Return 1 if anything is wrong, else 0."""
    schema = ray_service()
    if schema is None:
        print(f"{DEFINITION} does not exist, so RayService is not checked (RAGTREE_RAYSERVICE_CRD names another).")
    helm, checker, wrong = Helm(CHART), ManifestChecker(schema), False
    for name, values in value_sets().items():
        try:
            helm.lint(*values)
            manifests = helm.render(*values)
        except HelmError as error:
            print(f"{name}: {error}")
            wrong = True
            continue
        faults = [fault for manifest in manifests for fault in checker.faults(manifest)]
        print(f"{name}: {len(manifests)} manifests, " + (f"{len(faults)} faults" if faults else "all right"))
        for fault in faults:
            print(f"  {fault}")
        wrong = wrong or bool(faults)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())

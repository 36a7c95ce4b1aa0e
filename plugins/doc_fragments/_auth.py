# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation fragment: how to reach the cluster and log in."""

from __future__ import annotations


class ModuleDocFragment:
    """Options of AUTH_ARGUMENTS in plugins/module_utils/_cluster/argspec.py."""

    DOCUMENTATION = r"""
options:
  kubeconfig:
    description:
      - Path of a kubeconfig file, or its content as a dictionary.
      - Falls back to E(K8S_AUTH_KUBECONFIG). With neither this nor O(host) and O(api_key), the service account of a pod is
        used, then E(KUBECONFIG) or C(~/.kube/config).
    type: raw
  context:
    description: Context of the kubeconfig; falls back to E(K8S_AUTH_CONTEXT), then the current one.
    type: str
  host:
    description: URL of the API server; falls back to E(K8S_AUTH_HOST). With a login it replaces the kubeconfig.
    type: str
  api_key:
    description: Bearer token; falls back to E(K8S_AUTH_API_KEY).
    type: str
  username:
    description: User name for basic authentication; falls back to E(K8S_AUTH_USERNAME).
    type: str
  password:
    description: Password for basic authentication; falls back to E(K8S_AUTH_PASSWORD).
    type: str
  validate_certs:
    description: Whether the API server's certificate is verified; falls back to E(K8S_AUTH_VERIFY_SSL), then the kubeconfig.
    type: bool
    aliases: [verify_ssl]
  ca_cert:
    description: File with the CA of the API server; falls back to E(K8S_AUTH_SSL_CA_CERT) or E(K8S_AUTH_CA_CERT).
    type: path
    aliases: [ssl_ca_cert]
  client_cert:
    description: File with a client certificate; falls back to E(K8S_AUTH_CERT_FILE).
    type: path
    aliases: [cert_file]
  client_key:
    description: File with the key of O(client_cert); falls back to E(K8S_AUTH_KEY_FILE).
    type: path
    aliases: [key_file]
  proxy:
    description: URL of an HTTP proxy; falls back to E(K8S_AUTH_PROXY).
    type: str
  no_proxy:
    description: Hosts that are reached without the proxy, with commas between; falls back to E(K8S_AUTH_NO_PROXY).
    type: str
  impersonate_user:
    description: User to act as; falls back to E(K8S_AUTH_IMPERSONATE_USER).
    type: str
  impersonate_groups:
    description: Groups to act as; falls back to E(K8S_AUTH_IMPERSONATE_GROUPS), with commas between.
    type: list
    elements: str
requirements:
  - kubernetes >= 29 on the control node
notes:
  - Runs on the control node, whatever host the task is for. The C(environment) keyword of a task does not reach it;
    set options, or the environment of C(ansible-playbook) itself.
"""

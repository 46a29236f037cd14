#!/bin/bash
# User data of a spot machine (Amazon Linux 2023 or Debian 12): installs Intermission, and works on
# one prefix of a bucket until everything below it is transcribed. There is nothing secret in it:
# what it may do comes from the role of the machine.
set -euo pipefail

SOURCE="s3://BUCKET/videos/"
REGION="REGION"
PACKAGE="intermission[cloud,transcribe]"

if command -v dnf >/dev/null; then
    dnf install --assumeyes python3.11 python3.11-pip
    python=python3.11
else
    apt-get update
    DEBIAN_FRONTEND=noninteractive apt-get install --yes python3-venv
    python=python3
fi
"$python" -m venv /opt/intermission
/opt/intermission/bin/pip install --quiet "$PACKAGE"

mkdir -p /etc/intermission
cat >/etc/intermission/videos.env <<EOF
SOURCE=$SOURCE
AWS_REGION=$REGION
EOF

cat >/etc/systemd/system/intermission-transcribe@.service <<'EOF'
# intermission-transcribe@talks.service transcribes what /etc/intermission/talks.env names.
[Unit]
Description=Intermission: transcribe %i
Wants=network-online.target
After=network-online.target
# A machine that is interrupted often has not failed.
StartLimitIntervalSec=0

[Service]
Type=exec
EnvironmentFile=/etc/intermission/%i.env
ExecStart=/opt/intermission/bin/intermission run transcribe ${SOURCE}

# 75 is an interruption, 4 a fault of the machine or the store: both go on where they stopped.
# With 1, 2 and 3 a person has to look first.
Restart=on-failure
RestartForceExitStatus=75
RestartPreventExitStatus=1 2 3
RestartSec=30

# SIGTERM goes to the worker alone, which ends its slots itself; what is left after the time-out
# is killed. Longer than a drain takes, shorter than the two minutes of a spot notice.
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec=110

DynamicUser=yes
# Working copies of ledgers and sources, and models that are downloaded by name.
CacheDirectory=intermission
Environment=XDG_CACHE_HOME=%C/intermission
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
EOF

systemctl daemon-reload
systemctl enable --now intermission-transcribe@videos.service

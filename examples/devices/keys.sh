#!/usr/bin/env bash
# Certificates and keys for one federation, made on the server's machine:
#
#   ./keys.sh FOLDER SERVER_NAME DEVICE...          e.g.  ./keys.sh keys fl.example.org hospital-1 hospital-2
#   SERVER_NAME may be several, with commas; IP addresses are recognised:  fl.example.org,192.168.0.7
#   localhost and 127.0.0.1 are always added: the SuperLink's own processes reach it there
#
# FOLDER/ca.crt              goes to everybody: it is how devices know the server
# FOLDER/ca.key              stays, offline if you can: whoever has it can be the server
# FOLDER/server.pem, .key    for the SuperLink
# FOLDER/DEVICE, DEVICE.pub  one pair a device: DEVICE goes to it and nowhere else, DEVICE.pub is registered at the SuperLink
#
# Run again with further devices, it adds them; nothing that is there is ever overwritten.
set -euo pipefail
umask 077  # private files are readable by their owner alone

if [ $# -lt 3 ]; then
  sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
for tool in openssl ssh-keygen; do
  command -v "$tool" > /dev/null || { echo "error: expected $tool on the PATH; install it" >&2; exit 1; }
done
folder=$1 names=$2
shift 2
for device in "$@"; do
  case $device in
    *[!A-Za-z0-9._-]* | "" | ca | ca.* | server | server.*)
      echo "error: device name: expected letters, digits, dots and hyphens, not ca or server; found '$device'" >&2
      exit 1 ;;
  esac
  if [ -e "$folder/$device" ] || [ -e "$folder/$device.pub" ]; then
    echo "error: $folder/$device is there already, and a key is never overwritten; name another device or remove it" >&2
    exit 1
  fi
done
mkdir -p "$folder"

if [ ! -e "$folder/ca.key" ]; then
  [ ! -e "$folder/ca.crt" ] || { echo "error: $folder/ca.crt is there, its ca.key is not; name another folder" >&2; exit 1; }
  openssl ecparam -name prime256v1 -genkey -noout -out "$folder/ca.key"
  openssl req -new -x509 -days 3650 -sha256 -key "$folder/ca.key" -out "$folder/ca.crt" -subj "/CN=federation CA" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
fi
if [ ! -e "$folder/server.key" ]; then
  san=""
  IFS=, read -ra each <<< "$names"
  for name in localhost 127.0.0.1; do
    case ",$names," in *",$name,"*) ;; *) each+=("$name") ;; esac
  done
  for name in "${each[@]}"; do
    case $name in
      *[!0-9.]*) kind=DNS ;;
      *) kind=IP ;;
    esac
    case $name in *:*) kind=IP ;; esac
    san="$san${san:+,}$kind:$name"
  done
  openssl ecparam -name prime256v1 -genkey -noout -out "$folder/server.key"
  openssl req -new -key "$folder/server.key" -subj "/CN=${each[0]}" |
    openssl x509 -req -days 825 -sha256 -CA "$folder/ca.crt" -CAkey "$folder/ca.key" -CAcreateserial \
      -out "$folder/server.pem" -extfile <(
        printf '%s\n' basicConstraints=CA:FALSE keyUsage=digitalSignature extendedKeyUsage=serverAuth \
          subjectKeyIdentifier=hash authorityKeyIdentifier=keyid "subjectAltName=$san"
      ) 2> /dev/null
fi
for device in "$@"; do
  ssh-keygen -q -t ecdsa -b 384 -N "" -C "" -f "$folder/$device"
done
chmod 644 "$folder/ca.crt" "$folder/server.pem" "$folder"/*.pub
echo "written to $folder: ca.crt, server.pem, server.key and keys for $*"

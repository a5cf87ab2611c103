#!/bin/sh
# Installs Gatehouse. It downloads the checksums of a release, their signature and
# the archive for this machine, verifies all three, and only then changes a file.
#
#   curl -fsSL @LATEST@/install.sh | sh
#   sh install.sh --prefix /usr/local --version 1.4.0
#
# Everything is in functions, so that a download that was cut off does nothing.
set -eu

version=@VERSION@
page=@PAGE@
key='@KEY@'         # minisign's public key; empty if this release is not signed
raw='@RAW@'         # the same key without its number, in base64
number='@NUMBER@'   # the beginning of each signature by that key, in base64
base=
prefix=
strict=
remove=

usage() {
	cat <<'END'
Usage: install.sh [options]

  --prefix DIR          install below DIR (default: /usr/local for root, or else ~/.local)
  --version VERSION     install that version instead of @VERSION@
  --base URL            download from this folder, which must be https or on this machine
  --require-signature   fail if this machine has no program that can verify the signature
  --remove              remove what an earlier run has installed below the prefix
END
}

fail() {
	echo "install.sh: $*" >&2
	exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

parse() {
	while [ $# -gt 0 ]; do
		case $1 in
		--prefix | --version | --base) [ $# -gt 1 ] || fail "$1 needs a value" ;;
		esac
		case $1 in
		--prefix) prefix=$2 && shift ;;
		--version) version=${2#v} && shift ;;
		--base) base=${2%/} && shift ;;
		--require-signature) strict=yes ;;
		--remove) remove=yes ;;
		-h | --help) usage && exit 0 ;;
		*) fail "unknown option $1; see install.sh --help" ;;
		esac
		shift
	done
	if [ -z "$prefix" ]; then
		prefix=$HOME/.local
		[ "$(id -u)" != 0 ] || prefix=/usr/local
	fi
	case $prefix in /*) ;; *) fail "--prefix $prefix is not an absolute path" ;; esac
	[ -n "$base" ] || base=$page/releases/download/v$version
	case $base in
	https://*) only=https ;;
	http://127.0.0.1[:/]* | http://localhost[:/]*) only=http ;;
	*) fail "$base: expected an address that begins with https://" ;;
	esac
}

# platform prints the name of this machine in the files of a release.
platform() {
	case $(uname -s) in
	Linux) system=linux ;;
	Darwin) system=darwin ;;
	*) fail "there is no program for $(uname -s); see $page" ;;
	esac
	case $(uname -m) in
	x86_64 | amd64) arch=amd64 ;;
	aarch64 | arm64) arch=arm64 ;;
	*) fail "there is no program for processors of the kind $(uname -m); see $page" ;;
	esac
	echo "$system-$arch"
}

# fetch downloads a file of the release into the present folder.
fetch() {
	if have curl; then
		curl -fsSL --proto "=$only" --retry 2 --connect-timeout 30 -o "$1" "$base/$1"
	elif have wget; then
		wget -q -O "$1" "$base/$1"
	else
		fail "neither curl nor wget is installed"
	fi || fail "cannot download $base/$1"
}

digest() {
	if have sha256sum; then
		sha256sum "$1" | cut -d' ' -f1
	elif have shasum; then
		shasum -a 256 "$1" | cut -d' ' -f1
	elif have openssl; then
		openssl dgst -sha256 -r "$1" | cut -d' ' -f1
	else
		fail "sha256sum, shasum or openssl is needed to verify what was downloaded"
	fi
}

# openssl_can reports whether openssl knows both algorithms of the signature: since 3.0.
openssl_can() {
	have openssl && openssl pkeyutl -help 2>&1 | grep -q -e -rawin &&
		echo x | openssl dgst -blake2b512 >/dev/null 2>&1
}

# ed25519 verifies the signature in a file of the content of another.
ed25519() {
	openssl pkeyutl -verify -pubin -inkey key.pem -rawin -in "$2" -sigfile "$1" >/dev/null 2>&1
}

# by_openssl verifies SHA256SUMS.minisig: the second line is two letters for the algorithm,
# the number of the key, and a signature of the digest (BLAKE2b) of the file; the fourth
# is a signature of that signature and the comment in the third.
by_openssl() {
	printf -- '-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA%s\n-----END PUBLIC KEY-----\n' "$raw" >key.pem
	sed -n 2p SHA256SUMS.minisig | openssl base64 -d -A >whole || return 1
	[ "$(head -c 10 whole | openssl base64 -A)" = "$number" ] || return 1
	tail -c +11 whole >signature
	openssl dgst -blake2b512 -binary SHA256SUMS >content || return 1
	ed25519 signature content || return 1
	sed -n 4p SHA256SUMS.minisig | openssl base64 -d -A >second || return 1
	comment=$(sed -n '3s/^trusted comment: //p' SHA256SUMS.minisig)
	{ cat signature && printf %s "$comment"; } >commented
	ed25519 second commented
}

verify_signature() {
	if [ -z "$key" ]; then
		[ -z "$strict" ] || fail "this release is not signed"
		echo "This release is not signed; it is verified by checksums from $base alone."
		return
	fi
	if have minisign; then
		fetch SHA256SUMS.minisig
		minisign -V -q -P "$key" -m SHA256SUMS || fail "the signature of SHA256SUMS is wrong; nothing was installed"
	elif openssl_can; then
		fetch SHA256SUMS.minisig
		by_openssl || fail "the signature of SHA256SUMS is wrong; nothing was installed"
	else
		[ -z "$strict" ] || fail "neither minisign nor openssl 3 is installed, one of which can verify the signature"
		echo "Neither minisign nor openssl 3 is installed: the signature was NOT verified, only checksums from $base."
		return
	fi
	echo "The signature of $page is right."
}

verify_archive() {
	want=$(sed -n "s/^\([0-9a-f]*\)  $1\$/\1/p" SHA256SUMS)
	[ -n "$want" ] || fail "SHA256SUMS has no line for $1; nothing was installed"
	got=$(digest "$1")
	[ "$got" = "$want" ] || fail "$1 has the digest $got, expected $want; nothing was installed"
}

# places prints what is installed: the mode, the file in the archive, and where it goes.
places() {
	echo "755 gatehouse bin/gatehouse"
	echo "644 completions/gatehouse.bash share/bash-completion/completions/gatehouse"
	echo "644 completions/_gatehouse share/zsh/site-functions/_gatehouse"
	echo "644 completions/gatehouse.fish share/fish/vendor_completions.d/gatehouse.fish"
	for page1 in "$1"/man1/gatehouse*.1; do
		[ ! -e "$page1" ] || echo "644 man1/${page1##*/} share/man/man1/${page1##*/}"
	done
}

remove_all() {
	places "$prefix/share/man" | while read -r _ _ to; do
		rm -f "$prefix/$to"
	done
	echo "Removed gatehouse from $prefix; settings and data were kept."
}

# put puts a file in its place by a rename, so that no program ever sees half of it.
put() {
	mkdir -p "$prefix/$(dirname "$3")"
	cp "$2" "$prefix/$3.new.$$"
	chmod "$1" "$prefix/$3.new.$$"
	mv -f "$prefix/$3.new.$$" "$prefix/$3"
}

main() {
	parse "$@"
	if [ -n "$remove" ]; then
		remove_all
		return
	fi
	archive=gatehouse-$version-$(platform).tar.gz
	work=$(mktemp -d "${TMPDIR:-/tmp}/gatehouse.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	trap 'exit 1' HUP INT TERM
	cd "$work"
	fetch SHA256SUMS
	verify_signature
	fetch "$archive"
	verify_archive "$archive"
	mkdir files
	tar -xzf "$archive" -C files
	reported=$(./files/gatehouse version | sed -n '1s/^gatehouse \([^ ]*\) .*/\1/p')
	[ "$reported" = "$version" ] || fail "the program reports version '$reported', expected $version; nothing was installed"
	cd files
	places . | while read -r mode from to; do
		put "$mode" "$from" "$to"
	done
	echo "Installed gatehouse $version in $prefix/bin."
	case ":$PATH:" in
	*":$prefix/bin:"*) echo "Next: gatehouse setup" ;;
	*) echo "Add $prefix/bin to PATH, then: gatehouse setup" ;;
	esac
}

main "$@"

# Runs one piece of a Bash that remembers: what the last piece left is in the
# file $1, the code of this one in the file $2.
__gatehouse_state=$1 __gatehouse_code=$2
set --
__gatehouse_keep() {
	local status=$? new=$__gatehouse_state.new.$$
	trap - EXIT
	set +eu
	{
		declare -p | grep -av -e '^declare -[a-zA-Z]*r' -e '^declare -[-a-zA-Z]* \(BASH[A-Z_]*\|FUNCNAME\|GROUPS\|DIRSTACK\|PIPESTATUS\|SHELLOPTS\|__gatehouse_[a-z]*\|_\|EPOCH[A-Z]*\|SRANDOM\|RANDOM\|SECONDS\|LINENO\)\(=\|$\)' | sed 's/^declare -\([-a-zA-Z]*\) /declare -g\1 /; s/^declare -g-/declare -g/'
		declare -f | grep -av '^$'
		alias -p
		shopt -p
		printf 'cd -- %q\n' "$PWD"
		printf 'umask %s\n' "$(umask)"
	} >"$new" 2>/dev/null && mv -f "$new" "$__gatehouse_state"
	exit "$status"
}
if [ -e "$__gatehouse_state" ]; then
	. "$__gatehouse_state" 2>/dev/null
fi
unset -f __gatehouse_nothing
trap __gatehouse_keep EXIT
trap 'exit 130' INT
. "$__gatehouse_code"

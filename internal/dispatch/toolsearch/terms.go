package toolsearch

import (
	"strings"
	"sync"
	"unicode"

	"github.com/kljensen/snowball/english"
)

const (
	mostText = 8 << 10 // bytes of one text that are indexed
	mostTerm = 40      // bytes of a word; longer ones are identifiers that no query contains
)

// terms returns the words of a text, stemmed. Names such as readFile and HTTPServer_v2 are divided into their
// words. Words that every description has are left out.
func terms(text string) (all []string) {
	text = text[:min(len(text), mostText)]
	begin := -1
	var before rune
	flush := func(end int) {
		if begin >= 0 && end > begin {
			all = appendTerm(all, text[begin:end])
		}
		begin = -1
	}
	for i, r := range text {
		switch {
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			flush(i)
		case begin < 0:
			begin = i
		case unicode.IsUpper(r) && !unicode.IsUpper(before), unicode.IsDigit(r) != unicode.IsDigit(before):
			flush(i)
			begin = i
		case unicode.IsLower(r) && unicode.IsUpper(before) && i-begin > 1: // the S of HTTPServer
			flush(i - 1)
			begin = i - 1
		}
		before = r
	}
	flush(len(text))
	return all
}

func appendTerm(all []string, word string) []string {
	word = strings.ToLower(word)
	if len(word) > mostTerm || stopWords()[word] {
		return all
	}
	return append(all, english.Stem(word, false))
}

// stopWords say nothing about what a tool does.
var stopWords = sync.OnceValue(func() map[string]bool {
	words := map[string]bool{}
	for w := range strings.FieldsSeq(`a an and any are as at be been but by can could do does for from get gets give
		given has have how i if in into is it its like me my need needs of on or our out should so some that the their
		them then there these this those to tool tools up us use used uses using want was we what when where which who
		will with would you your please something thing things`) {
		words[w] = true
	}
	return words
})

// relatedTo has, for each word of a group, the others: requests name a thing by one, and descriptions by another.
var relatedTo = sync.OnceValue(func() map[string][]string {
	related := map[string][]string{}
	for line := range strings.Lines(groups) {
		var stems []string
		for w := range strings.FieldsSeq(line) {
			stems = append(stems, english.Stem(w, false))
		}
		for _, a := range stems {
			for _, b := range stems {
				if a != b {
					related[a] = append(related[a], b)
				}
			}
		}
	}
	return related
})

const groups = `delete remove erase drop destroy clear purge discard
create make new add insert generate build
list enumerate show browse all
read fetch view open retrieve load look obtain
write save store put persist record
update edit modify change alter patch adjust set
search find query lookup grep locate discover
run execute launch start invoke command spawn
stop kill terminate end cancel abort halt
restart reboot
directory folder path
file document
move rename relocate
copy duplicate clone
email mail message inbox
send post publish deliver notify
message chat conversation dm
image picture photo screenshot
website web page url site link http
browser tab chromium webpage
click press tap
type fill enter input
repository repo git project
issue ticket bug task
commit revision history changeset
branch merge pull
calendar event meeting appointment schedule
remind reminder alarm
database db sql table postgres sqlite
row entry item record
time date clock timezone hour now today
memory ram remember note recall
cpu processor load
user account person people member contact
password secret credential token key login
permission access role right
weather forecast temperature rain
map place address location geocode direction route
translate language
price cost amount money payment invoice charge
order purchase buy checkout
customer client buyer
video clip movie youtube
audio sound speech voice music song
chart graph plot diagram
document page note wiki
summary summarize overview digest
difference diff compare
count number size amount statistics total
log journal trace output
error failure exception problem crash
test check verify validate inspect
download fetch save
upload send attach
compress zip archive pack
extract unzip unpack
encrypt protect
container docker image
pod kubernetes cluster deployment
server host machine
package library dependency module
port network connection socket
news headline article
paper publication research study
stock share ticker market
comment reply respond answer
documentation docs manual help guide reference
think reason plan step
entity relation graph knowledge
environment variable setting config configuration option
metadata info information detail attribute property
snapshot backup restore
print output display
`

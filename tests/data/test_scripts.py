"""The normalization of new vocabularies keeps the text of every script; but for a few changes."""

import unicodedata

import pytest

from keras_transformer.data import train_sentencepiece

# A sentence of each script, by the first word of the Unicode names of its letters. Arabic,
# Devanagari, Telugu and Sinhala have joiners without width, Khmer a space without width.
SENTENCES = {
    "LATIN": "Où est l’œuf ? Đường này đẹp lắm, ĝis revido, çok güzel, žluťoučký kůň.",
    "GREEK": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "CYRILLIC": "Все люди рождаются свободными и равными в своём достоинстве и правах.",
    "ARMENIAN": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար։",
    "GEORGIAN": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი.",
    "HEBREW": "כל בני אדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "ARABIC": "می‌خواهم کتاب‌ها را بخوانم؛ آیا می‌آیی؟",
    "SYRIAC": "ܟܠ ܒܪܢܫܐ ܒܪܝܠܗ ܚܐܪܐ.",
    "THAANA": "ހުރިހާ އިންސާނުން އުފަންވަނީ މިނިވަންކަމުގައެވެ.",
    "NKO": "ߒߞߏ ߦߋ߫ ߞߊ߲ ߠߋ߬ ߘߌ߫.",
    "DEVANAGARI": "सभी मनुष्य जन्म से स्वतन्त्र हैं, और क्‍ष में जोड़ दिखता है।",
    "BENGALI": "সমস্ত মানুষ স্বাধীনভাবে জন্মগ্রহণ করে।",
    "GURMUKHI": "ਸਾਰੇ ਮਨੁੱਖ ਆਜ਼ਾਦ ਪੈਦਾ ਹੁੰਦੇ ਹਨ।",
    "GUJARATI": "બધા મનુષ્યો જન્મથી સ્વતંત્ર છે.",
    "ORIYA": "ସବୁ ମଣିଷ ଜନ୍ମରୁ ସ୍ୱାଧୀନ।",
    "TAMIL": "எல்லா மனிதர்களும் சுதந்திரமாகப் பிறக்கிறார்கள்.",
    "TELUGU": "నేను సాఫ్ట్‌వేర్ రాస్తాను.",
    "KANNADA": "ಎಲ್ಲಾ ಮಾನವರೂ ಸ್ವತಂತ್ರರಾಗಿಯೇ ಜನಿಸಿದ್ದಾರೆ.",
    "MALAYALAM": "മനുഷ്യരെല്ലാം സ്വതന്ത്രരായി ജനിക്കുന്നു; അവൻ വന്നു.",
    "SINHALA": "ශ්‍රී ලංකාව ලස්සන රටකි.",
    "THAI": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกัน",
    "LAO": "ມະນຸດເກີດມາມີສິດເສລີພາບ ແລະ ສະເໝີໜ້າກັນ",
    "TIBETAN": "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་རང་དབང་ཡོད།",
    "MYANMAR": "လူတိုင်းသည် လွတ်လပ်စွာ မွေးဖွားလာသည်။",
    "KHMER": "មនុស្សទាំងអស់​កើតមក​មានសេរីភាព។",
    "ETHIOPIC": "የሰው ልጅ ሁሉ ነጻ ሆኖ ይወለዳል።",
    "CHEROKEE": "ᏂᎦᏓ ᎠᏂᏴᏫ ᏂᎨᎫᏓᎸᎾ ᎠᎴ ᎤᏂᏠᏱ.",
    "CANADIAN": "ᐃᓄᓕᒫᑦ ᐊᓂᖅᑎᕆᔪᓕᒫᑦ ᐃᓅᓕᖅᑎᑕᐅᓯᒪᔪᑦ.",
    "MONGOLIAN": "ᠬᠦᠮᠦᠨ ᠪᠦᠷ ᠲᠥᠷᠥᠵᠦ ᠮᠡᠨᠳᠡᠯᠡᠬᠦ᠃",
    "HANGUL": "모든 인간은 태어날 때부터 자유로우며 동등하다.",
    "HIRAGANA": "すべてのひとは、うまれながらにしてじゆうです。「はい！」",
    "KATAKANA": "コーヒー・ケーキ〜１２３円、５％引き。",
    "CJK": "人人生而自由，在尊严和权利上一律平等（第１条）。",
    "BOPOMOFO": "ㄖㄣˊ ㄖㄣˊ ㄕㄥ ㄦˊ ㄗˋ ㄧㄡˊ。",
    "YI": "ꊿꂷꃅꄿꐨꐥ，ꌅꅍꂘꀕꃅꐥ。",
    "TIFINAGH": "ⵉⵎⴷⴰⵏⵏ ⴰⴽⴽⵯ ⵜⵜⵍⴰⵍⵏ ⴷ ⵉⵍⴻⵍⵍⵉⵢⵏ.",
    "JAVANESE": "ꦱꦧꦼꦤ꧀ꦮꦺꦴꦁꦏꦭꦲꦶꦂꦏꦺ꧉",
    "OL": "ᱡᱚᱛᱚ ᱢᱟᱹᱱᱢᱤ ᱯᱷᱩᱨᱜᱟᱹᱞ ᱜᱮ ᱠᱚ ᱡᱟᱱᱟᱢᱚᱜᱼᱟ᱾",
    "MEETEI": "ꯃꯤꯑꯣꯏꯕ ꯈꯨꯗꯤꯡꯃꯛ ꯄꯣꯛꯄ ꯃꯇꯝꯗ ꯅꯤꯡꯇꯝꯃꯤ꯫",
    "RUNIC": "ᛁᚲ ᚺᚨᛏᛖ ᛖᚱᛁᛚᚨᛉ.",
    "GOTHIC": "𐌰𐍄𐍄𐌰 𐌿𐌽𐍃𐌰𐍂 𐌸𐌿 𐌹𐌽 𐌷𐌹𐌼𐌹𐌽𐌰𐌼.",
    "ADLAM": "𞤋𞤥𞤦𞤫 𞤬𞤮𞤬 𞤨𞤮𞤼𞤢𞤥𞤫.",
}
SYMBOLS = "x² + y³ ≈ 1½ …  ™ № ½ € 5\u00a0km 👩\u200d👩\u200d👧 soft\u00adhyphen"
# Other codes of the same text.
CHANGES = {
    "caf\u0065\u0301 \u212bngstr\u00f6m": "caf\u00e9 \u00c5ngstr\u00f6m",  # composed
    "ế": "ế",  # in two ways
    "\u00e2\u0323 a\u0302\u0323": "\u1ead \u1ead",  # accents in another order
    "\u1112\u1161\u11ab": "한",
    "\u0958": "\u0915\u093c",  # Unicode does not compose this letter.
    "a\u00a0b\u2009c\u3000d\te  f": "a b c d e f",
    "\ufeffone\x07 two\x7f": "one two",
    "e\ufb03cient \ufee3\ufeae\ufea3\ufe92\ufe8e": "efficient مرحبا",  # ligatures and forms
}


@pytest.fixture(scope="module")
def tokenizer():
    return train_sentencepiece([*SENTENCES.values(), SYMBOLS], 1300, allow_fewer=True)


@pytest.mark.parametrize("script", SENTENCES)
def test_every_script_comes_back(tokenizer, script):
    text = SENTENCES[script]
    letters = [letter for letter in text if unicodedata.category(letter).startswith("L")]
    assert script in {unicodedata.name(letter).split()[0] for letter in letters}
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(unicodedata.normalize("NFD", text)) == tokenizer.encode(text)


@pytest.mark.parametrize("text", CHANGES)
def test_wanted_changes(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == CHANGES[text]


@pytest.mark.tensorflow_only("the graph is TensorFlow's")
def test_a_graph_normalizes_in_the_same_way(tokenizer):
    texts = [*SENTENCES.values(), SYMBOLS, *CHANGES]
    in_graph = tokenizer.in_graph().tokenize(texts).to_list()
    assert in_graph == tokenizer.encode_batch(texts)


@pytest.mark.parametrize("normalization, expected", [
    ("nmt_nfkc", "x2 می خواهم, tm"), ("nmt_nfkc_cf", "x2 می خواهم, tm"),
    ("identity", "x² می\u200cخواهم， ™"), ("nfc", "x² می\u200cخواهم， ™"),
])  # fmt: skip
def test_other_normalizations_are_those_of_sentencepiece(normalization, expected):
    text = "x² می\u200cخواهم， ™"
    learned = train_sentencepiece([text], 300, normalization=normalization, allow_fewer=True)
    assert learned.decode(learned.encode(text)).replace("TM", "tm") == expected


def test_an_unknown_normalization_is_refused():
    with pytest.raises(
        ValueError, match="`normalization` must be one of .*Received: normalization='nfd'"
    ):
        train_sentencepiece(["a"], 280, normalization="nfd")
